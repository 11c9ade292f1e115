"""The compose file is valid by the schema of the Compose specification."""

from __future__ import annotations

import json

import yaml
from jsonschema import Draft202012Validator

from tests.support.paths import ROOT

SCHEMA = ROOT / ".deploy" / "node_modules" / "dclint" / "schemas" / "compose.schema.json"


def test_compose_file_is_valid() -> None:
    validator = Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
    assert [error.message for error in validator.iter_errors(compose)] == []
    compose["services"]["dragoman"]["read_onyl"] = True
    assert not validator.is_valid(compose)
