"""The official conformance suite of the Model Context Protocol, run with our client.

The client lists tools and calls them. It has no user to ask, offers no model to servers, and cannot
sign in with a browser: requests bring the token that a server needs.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.remote.installed import NODE, ROOT, SUITE

OLD, NEW = "2025-11-25", "2026-07-28"
# scenarios that apply, each with a version of the protocol
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
# scenarios that do not apply, and why
NOT_APPLICABLE = {
    r"auth/.*": "clients sign in themselves: they send `authorization` or `headers` with the tool",
    r"elicitation-.*": "there is no user to ask in the middle of a response",
    r"sep-2322-client-request-state": "it needs answers of a user",
    r"sep-2640-.*": "skills are resources; only tools are used",
}


def run_suite(*arguments: str) -> tuple[int, str]:
    """The exit status of the suite, and its output."""
    result = subprocess.run(
        [NODE, SUITE, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return result.returncode, result.stdout


def test_every_scenario_is_listed_here() -> None:
    """A newer suite may have more; each must be run, or listed as not applicable."""
    _, output = run_suite("list", "--client")
    names = set(re.findall(r"^\s+- (\S+) \[", output, re.MULTILINE))
    assert len(names) > 20, output
    applied = {name for name, _ in SCENARIOS}
    assert applied <= names
    for name in names - applied:
        assert any(re.fullmatch(pattern, name) for pattern in NOT_APPLICABLE), name


@pytest.mark.parametrize(("scenario", "version"), SCENARIOS)
def test_the_scenario_passes(scenario: str, version: str) -> None:
    command = f"{sys.executable} -m tests.remote.client"
    status, output = run_suite(
        *("client", "--command", command, "--scenario", scenario),
        *("--spec-version", version, "--timeout", "60000"),
    )
    assert status == 0, output
    summary = re.search(r"Passed: (\d+)/(\d+), 0 failed, 0 warnings", output)
    assert summary is not None, output
    print(f"{scenario} {version}: {summary[0]}")
