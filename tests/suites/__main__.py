"""A vendor's own test suite against our server: `python -m tests.suites openai`.

The suite comes from the package's source distribution, its client from the package itself, both in
an environment of their own under `.venv/suites`, set up by the make target. The server runs here,
with an engine that answers everything with one short text and takes any model's name. The suite's
tests ask for things by fixed ids (`resp_123`), so before each test the plugin in its process asks
for `seed` to put them there.

A test passes, or its function fits a line of the allow-list, which has the reason why not. A line
covers every client the function is run with (sync, async; loose, strict), or with `@strict` the
strict ones. When a test that a line covers passes, the line is wrong and the run fails, so the list
cannot rot.
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
from tests.suites.seed import Seeds
from tests.support.serving import QUIET, RunningServer, serve_scripted

HERE = Path(__file__).parent
SUITES = HERE.parent.parent / ".venv" / "suites"
ANSWER = "Hello there, how can I help?"

# what is run of each suite, below tests/api_resources; and what the client wants before our paths
FILES = {
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
BASE = {"openai": "/v1", "anthropic": ""}
VARIANT = re.compile(r"tests/api_resources/(.+\.py)::(?:\w+::)?(\w+)(?:\[(\w+)\])?")


def excuse(test: str, excused: dict[str, str]) -> str | None:
    """The line of the allow-list that covers a test."""
    found = VARIANT.match(test)
    if found is None:
        return None
    function = f"{found[1]}::{found[2]}"
    names = [function] if found[3] == "loose" else [function, f"{function}@strict"]
    return next((line for line in excused if any(fnmatchcase(name, line) for name in names)), None)


def allowed(path: Path) -> dict[str, str]:
    """What need not pass, with the reasons."""
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = [line.split(maxsplit=1) for line in lines if line.strip() and line[0] != "#"]
    if bare := [pair[0] for pair in pairs if len(pair) < 2]:
        raise SystemExit(f"{path.name}: {bare[0]} has no reason")
    return dict(pairs)


@contextmanager
def listening(seed: Callable[[], None]) -> Iterator[str]:
    """A door for the suite's process: a line that comes in has things planted, then goes back."""

    class Door(StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                seed()
                self.wfile.write(line)

    with ThreadingTCPServer(("127.0.0.1", 0), Door) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name="seeding")
        thread.start()
        try:
            yield str(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


def run_suite(name: str, server: RunningServer, more: list[str]) -> dict[str, tuple[str, str]]:
    """What became of each test, and how it failed if it did."""
    home = SUITES / name
    source = next(home.glob(f"source/{name}-*/tests/api_resources")).parent.parent
    seeds = Seeds(server)
    seeds.plant()
    with tempfile.TemporaryDirectory() as made, listening(seeds.plant) as door:
        results = Path(made) / "results"
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": made,
            "PYTHONPATH": str(HERE / "plugin"),
            "TEST_API_BASE_URL": server.url + BASE[name],
            "DRAGOMAN_SEEDING": door,
            "DRAGOMAN_RESULTS": str(results),
        }
        files = [f"tests/api_resources/{file}" for file in FILES[name]]
        told = ["--tb=short"] if more else ["--tb=no", "--no-summary"]
        options = ["-q", *told, "-p", "dragoman_suite", "-p", "no:cacheprovider"]
        own = ["-o", "addopts=" + ("-p tests._alias_httpx" if name == "anthropic" else "")]
        command = [str(home / "bin" / "python"), "-m", "pytest", *options, *own, *files, *more]
        done = subprocess.run(command, cwd=source, env=environment, check=False)
        if done.returncode not in (0, 1) or not results.exists():
            raise SystemExit(f"The suite of {name} did not run.")
        lines = results.read_text(encoding="utf-8").splitlines()
    return {test: (outcome, why) for test, outcome, why in map(json.loads, lines)}


def judge(results: dict[str, tuple[str, str]], excused: dict[str, str]) -> list[str]:
    """What is wrong: failures without an excuse, excuses without a failure."""
    wrong, used = [], set()
    for test, (outcome, why) in results.items():
        line = excuse(test, excused)
        used.add(line)
        if outcome == "failed" and line is None:
            wrong.append(f"failed:  {test}\n         {why}")
        if outcome != "failed" and line is not None:
            wrong.append(f"{outcome}, but excused by `{line}`:  {test}")
    return wrong + [f"nothing is excused by `{line}`" for line in excused if line not in used]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.suites", description=__doc__)
    parser.add_argument("suite", choices=sorted(FILES))
    parser.add_argument("-k", default="", help="only tests that match, as pytest has it")
    said = parser.parse_args()
    excused = allowed(HERE / f"{said.suite}.allow")
    engine = ScriptedEngine(ANSWER, tokens=True, grammars=True, context=8192)
    with serve_scripted(engine, any_model=True, **QUIET) as server:
        results = run_suite(said.suite, server, ["-k", said.k] if said.k else [])
    if said.k:
        used = {excuse(test, excused) for test in results}
        excused = {line: why for line, why in excused.items() if line in used}
    wrong = judge(results, excused)
    passed = sum(outcome == "passed" for outcome, _ in results.values())
    missed = sum(excuse(test, excused) is not None for test in results)
    print("\n".join(wrong))
    print(
        f"{said.suite}: {len(results)} tests; {passed} passed, {missed} need not, "
        f"for {len(excused)} reasons in {said.suite}.allow; {len(wrong)} wrong"
    )
    sys.exit(1 if wrong or not results else 0)


if __name__ == "__main__":
    main()
