"""Runs a vendor's own test suite against this server: `python -m tests.suites openai`.

The suite comes from the package's source distribution, its client from the package itself, both in
an environment of their own under `.venv/suites`, set up by the make target. The server runs here,
with an engine that answers everything with one short text and accepts any model name. The suite's
tests use objects with fixed ids (`resp_123`), so before each test the plugin in its process has
`seed` create them.

A test passes, or its function matches a line of the allow-list, which states the reason. A line
covers every client the function is run with (sync, async; loose, strict), or with `@strict` the
strict ones. When a test that a line covers passes, the line is wrong and the run fails, so the list
stays current.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

from dragoman.testing import ScriptedEngine
from tests.suites.seed import Seeder
from tests.support.serving import QUIET, RunningServer, serve_scripted

FOLDER = Path(__file__).parent
SUITES = FOLDER.parent.parent / ".venv" / "suites"
ANSWER = "Hello there, how can I help?"

# the files of each suite to run, below tests/api_resources, and the base path of its client
TEST_FILES = {
    "openai": (
        "chat",
        "test_completions.py",
        "test_embeddings.py",
        "test_models.py",
        "test_responses.py",
        "responses",
        "beta/test_responses.py",
        "beta/responses",
        "test_conversations.py",
        "conversations",
    ),
    "anthropic": (
        "test_messages.py",
        "test_models.py",
        "beta/test_messages.py",
        "beta/test_models.py",
    ),
}
BASE_PATHS = {"openai": "/v1", "anthropic": ""}
TEST_ID = re.compile(r"tests/api_resources/(.+\.py)::(?:\w+::)?(\w+)(?:\[(\w+)\])?")


def find_exception(test: str, exceptions: dict[str, str]) -> str | None:
    """Return the line of the allow-list that covers a test."""
    match = TEST_ID.match(test)
    if match is None:
        return None
    function = f"{match[1]}::{match[2]}"
    names = [function] if match[3] == "loose" else [function, f"{function}@strict"]
    return next(
        (line for line in exceptions if any(fnmatchcase(name, line) for name in names)), None
    )


def read_allow_list(path: Path) -> dict[str, str]:
    """Return the lines of an allow-list, with their reasons."""
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = [line.split(maxsplit=1) for line in lines if line.strip() and line[0] != "#"]
    if incomplete := [pair[0] for pair in pairs if len(pair) < 2]:
        raise SystemExit(f"{path.name}: {incomplete[0]} has no reason")
    return dict(pairs)


@contextmanager
def serve_seeding(seed: Callable[[], None]) -> Iterator[str]:
    """Serve the suite's process: a line that arrives is sent back after seeding."""

    class SeedingHandler(StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                seed()
                self.wfile.write(line)

    with ThreadingTCPServer(("127.0.0.1", 0), SeedingHandler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name="seeding")
        thread.start()
        try:
            yield str(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


def run_suite(name: str, server: RunningServer, selection: list[str]) -> dict[str, tuple[str, str]]:
    """Return the outcome of each test, and the error of a failed one."""
    environment_folder = SUITES / name
    source = next(environment_folder.glob(f"source/{name}-*/tests/api_resources")).parent.parent
    seeder = Seeder(server)
    seeder.create()
    with tempfile.TemporaryDirectory() as folder, serve_seeding(seeder.create) as port:
        results = Path(folder) / "results"
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "PYTHONPATH": str(FOLDER / "plugin"),
            "TEST_API_BASE_URL": server.url + BASE_PATHS[name],
            "DRAGOMAN_SEEDING": port,
            "DRAGOMAN_RESULTS": str(results),
        }
        files = [f"tests/api_resources/{file}" for file in TEST_FILES[name]]
        verbosity = ["--tb=short"] if selection else ["--tb=no", "--no-summary"]
        options = ["-q", *verbosity, "-p", "dragoman_suite", "-p", "no:cacheprovider"]
        overrides = ["-o", "addopts=" + ("-p tests._alias_httpx" if name == "anthropic" else "")]
        command = [
            str(environment_folder / "bin" / "python"),
            "-m",
            "pytest",
            *options,
            *overrides,
            *files,
            *selection,
        ]
        process = subprocess.run(command, cwd=source, env=environment, check=False)
        if process.returncode not in (0, 1) or not results.exists():
            raise SystemExit(f"The suite of {name} did not run.")
        lines = results.read_text(encoding="utf-8").splitlines()
    return {test: (outcome, why) for test, outcome, why in map(json.loads, lines)}


def find_problems(results: dict[str, tuple[str, str]], exceptions: dict[str, str]) -> list[str]:
    """Return failures that no line covers, and lines that cover no failure."""
    problems, used_lines = [], set()
    for test, (outcome, why) in results.items():
        line = find_exception(test, exceptions)
        used_lines.add(line)
        if outcome == "failed" and line is None:
            problems.append(f"failed:  {test}\n         {why}")
        if outcome != "failed" and line is not None:
            problems.append(f"{outcome}, but covered by `{line}`:  {test}")
    return problems + [
        f"no test is covered by `{line}`" for line in exceptions if line not in used_lines
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.suites", description=__doc__)
    parser.add_argument("suite", choices=sorted(TEST_FILES))
    parser.add_argument("-k", default="", help="only run tests that match, as in pytest")
    arguments = parser.parse_args()
    exceptions = read_allow_list(FOLDER / f"{arguments.suite}.allow")
    engine = ScriptedEngine(ANSWER, tokens=True, grammars=True, context=8192)
    with serve_scripted(engine, any_model=True, **QUIET) as server:
        results = run_suite(arguments.suite, server, ["-k", arguments.k] if arguments.k else [])
    if arguments.k:
        used_lines = {find_exception(test, exceptions) for test in results}
        exceptions = {line: why for line, why in exceptions.items() if line in used_lines}
    problems = find_problems(results, exceptions)
    passed = sum(outcome == "passed" for outcome, _ in results.values())
    excepted = sum(find_exception(test, exceptions) is not None for test in results)
    print("\n".join(problems))
    print(
        f"{arguments.suite}: {len(results)} tests; {passed} passed, {excepted} allowed to fail, "
        f"for {len(exceptions)} reasons in {arguments.suite}.allow; {len(problems)} problems"
    )
    sys.exit(1 if problems or not results else 0)


if __name__ == "__main__":
    main()
