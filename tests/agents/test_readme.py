"""The README's block about agents starts each of them with the server."""

from __future__ import annotations

import re
import shlex

import pytest

from dragoman.testing import ScriptedEngine
from tests.agents.sandbox import GREETING, AgentSandbox
from tests.agents.test_claude_code import QUIET
from tests.support.doc_blocks.blocks import DocBlock, list_blocks_of, run_blocks
from tests.support.doc_blocks.workspace import ADDRESS
from tests.support.serving import serve_scripted

# without a terminal, an agent takes its task as arguments
TASKS = {"claude": ["-p", GREETING], "codex": ["exec", "--skip-git-repo-check", GREETING]}


@pytest.mark.parametrize("agent", TASKS)
@run_blocks(list_blocks_of("test-agents"))
def test_line_of_the_readme_starts_the_agent(
    agent: str, example: list[DocBlock], sandbox: AgentSandbox
) -> None:
    [block] = example
    [line] = re.findall(
        rf"^(?:\w+=\S+ )*{agent} .*$", block.text.replace("\\\n", " "), re.MULTILINE
    )
    with serve_scripted(ScriptedEngine("Hello from the README."), name="NAME") as server:
        words = shlex.split(line.replace(ADDRESS, server.url.removeprefix("http://")))
        start = words.index(agent)
        variables = dict(word.split("=", 1) for word in words[:start])
        result = sandbox.run([*words[start:], *TASKS[agent]], QUIET | variables)
    assert result.exit_code == 0, result
    assert "Hello from the README." in result.output
