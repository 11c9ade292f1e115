"""The official conformance suite of the Model Context Protocol, held against our toolbox.

The toolbox is a client that lists tools and calls them. It has no user to ask, no model to lend and
no browser to sign in with: a request brings the token that a server wants, if it wants one.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.remote.installed import NODE, ROOT, SUITE

OLD, NEW = "2025-11-25", "2026-07-28"
# scenarios that apply, and the versions of the protocol that they are run with
SCENARIOS = [
    ("initialize", "2025-06-18"),
    ("initialize", OLD),
    ("tools_call", "2025-06-18"),
    ("tools_call", OLD),
    ("tools_call", NEW),
    ("sse-retry", OLD),
    ("request-metadata", NEW),
    ("http-standard-headers", NEW),
    ("http-custom-headers", NEW),
    ("http-invalid-tool-headers", NEW),
    ("json-schema-ref-no-deref", NEW),
    ("json-schema-2020-12-preservation", OLD),
    ("json-schema-2020-12-preservation", NEW),
]
# those that do not, and why
NOT_APPLICABLE = {
    r"auth/.*": "signing in is the client's: it sends `authorization` or `headers` with the tool",
    r"elicitation-.*": "there is no user to ask in the middle of a response",
    r"sep-2322-client-request-state": "it answers questions to a user, and there is none to ask",
    r"sep-2640-.*": "skills are resources; only tools are used",
}


def run_suite(*arguments: str) -> tuple[int, str]:
    """How the suite ended, and all that it said."""
    done = subprocess.run(
        [NODE, SUITE, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


def test_every_scenario_is_either_run_or_apart() -> None:
    """A newer suite has more of them; somebody has to look."""
    _, told = run_suite("list", "--client")
    names = set(re.findall(r"^\s+- (\S+) \[", told, re.MULTILINE))
    assert len(names) > 20, told
    applied = {name for name, _ in SCENARIOS}
    assert applied <= names
    for name in names - applied:
        assert any(re.fullmatch(pattern, name) for pattern in NOT_APPLICABLE), name


@pytest.mark.parametrize(("scenario", "version"), SCENARIOS)
def test_the_scenario_passes(scenario: str, version: str) -> None:
    command = f"{sys.executable} -m tests.remote.client"
    status, told = run_suite(
        *("client", "--command", command, "--scenario", scenario),
        *("--spec-version", version, "--timeout", "60000"),
    )
    assert status == 0, told
    found = re.search(r"Passed: (\d+)/(\d+), 0 failed, 0 warnings", told)
    assert found is not None, told
    print(f"{scenario} {version}: {found[0]}")
