"""Runs the benchmarks and writes their tables: `python -m bench [a b c d e f] [--rounds N]`.

All parts together take about a quarter of an hour on two cores. Numbers from a busy machine mean
little, so it waits a while for a quiet one, and how busy it was stands beside the results.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

from bench import constraints, parsing, parts, turns
from bench.measure import ROOT
from bench.parts import Plan

PARTS = {
    "a": parts.stream_cpu,
    "b": parts.same_model,
    "c": parts.long_answers,
    "d": turns.next_turn,
    "e": parsing.parsing,
    "f": constraints.constraints,
}
BUSY = 0.3  # cores at work above which a machine is not quiet
LIBRARIES = ("dragoman", "uvicorn", "uvloop", "httptools", "fastapi", "pydantic", "msgspec")
ENGINES = ("xllamacpp", "llguidance", "tokenizers", "jinja2")


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, {memory} GiB"


def busy_cores(seconds: float) -> float:
    """How many cores have been at work, by the kernel's own count."""

    def ticks() -> tuple[int, int]:
        each = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(each), each[3] + each[4]  # all of them, and idle or waiting for a disk

    total, idle = ticks()
    time.sleep(seconds)
    later, rest = ticks()
    return (os.cpu_count() or 1) * (1 - (rest - idle) / max(1, later - total))


def quiet(patience: float) -> float:
    """Wait until little else runs, but not for ever; how busy it is then."""
    deadline = time.monotonic() + patience
    while (busy := busy_cores(2.0)) > BUSY and time.monotonic() < deadline:
        print(f"waiting for a quiet machine: {busy:.1f} cores are at work")
    return busy


def heading(plan: Plan, busy: float) -> str:
    libraries = ", ".join(f"{name} {version(name)}" for name in (*LIBRARIES, *ENGINES))
    return "\n".join(
        [
            "# Results",
            "",
            "Made by `make bench`. Server and client each have a core of their own; servers take "
            f"turns; {plan.rounds} rounds; medians of the rounds' ratios with their range.",
            "",
            f"- Date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
            f"- Machine: {machine()}; {busy:.2f} cores were busy with something else",
            f"- Python {platform.python_version()}, Linux {platform.release()}",
            f"- {libraries}",
            f"- Model: {Path(plan.model).name}",
            "",
        ]
    )


def model_file() -> str:
    """The default model; fetched first if it is not there."""
    given = os.environ.get("DRAGOMAN_TEST_MODEL")
    if given:
        return given
    from dragoman.config import Settings
    from dragoman.models.pull import pull

    return str(pull("smollm2-135m", Settings().models_path))


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", choices=[[], *PARTS], metavar="PART", help="a to f (all)"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=float, default=3.0, help="seconds of each look")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of a real answer")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for quiet")
    said = parser.parse_args()
    busy = quiet(said.patience)
    plan = Plan(rounds=said.rounds, window=said.window, model=model_file(), tokens=said.tokens)
    text = [heading(plan, busy)]
    for name in said.parts or PARTS:
        begun = time.monotonic()
        text.append(str(PARTS[name](plan)))
        print(text[-1])
        print(f"({time.monotonic() - begun:.0f} s)\n")
    if not said.parts:
        (ROOT / "bench" / "RESULTS.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
