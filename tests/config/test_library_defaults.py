"""Settings of libraries that can only be made through the environment."""

from __future__ import annotations

import os

import pytest

import dragoman
from dragoman.config import set_library_defaults
from dragoman.testing import ScriptedEngine

NAME = "TOKENIZERS_PARALLELISM"


@pytest.mark.parametrize(("before", "after"), [({}, "false"), ({NAME: "true"}, "true")])
def test_what_the_operator_sets_is_kept(before: dict[str, str], after: str) -> None:
    set_library_defaults(before)
    assert before == {NAME: after}


def test_an_app_sets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "")  # is restored afterwards
    monkeypatch.delenv(NAME)
    dragoman.app(ScriptedEngine("Hello."))
    assert os.environ[NAME] == "false"
