"""Runs the benchmarks and writes their tables: `python -m bench [a b c …] [--rounds N]`.

All parts together take about twenty minutes on two cores. A busy machine distorts the
numbers, so the program waits a while until it is idle, and reports how busy it was. The results of
`bench.vllm_serving` on a GPU are in `gpu_results.md`, which is appended.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

from bench import (
    admission,
    constraints,
    embedding,
    http_serving,
    next_turn,
    parsing,
    request_start,
    shared_prefix,
    upstream,
)
from bench.measure import ROOT
from bench.report import BenchOptions

PARTS = {
    "a": http_serving.measure_stream_cpu,
    "b": http_serving.compare_model_servers,
    "c": http_serving.measure_long_answers,
    "d": next_turn.measure_next_turn,
    "e": parsing.measure_parsing,
    "f": constraints.measure_constraints,
    "g": admission.measure_admission,
    "h": upstream.measure_upstream,
    "i": embedding.measure_embeddings,
    "j": shared_prefix.measure_shared_prefix,
    "k": request_start.measure_request_start,
}
MAX_BUSY_CORES = 0.3  # an idle machine has no more
LIBRARIES = ("dragoman", "uvicorn", "uvloop", "httptools", "fastapi", "pydantic", "msgspec")
ENGINES = ("xllamacpp", "llguidance", "tokenizers", "jinja2")


def describe_machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, {memory} GiB"


def count_busy_cores(seconds: float) -> float:
    """Return the average number of busy cores over some seconds, as the kernel counts them."""

    def read_ticks() -> tuple[int, int]:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(ticks), ticks[3] + ticks[4]  # all, and those idle or waiting for a disk

    total, idle = read_ticks()
    time.sleep(seconds)
    total_after, idle_after = read_ticks()
    return (os.cpu_count() or 1) * (1 - (idle_after - idle) / max(1, total_after - total))


def wait_until_idle(timeout: float) -> float:
    """Wait until the machine is idle or the time is up; return the number of busy cores."""
    deadline = time.monotonic() + timeout
    while (busy := count_busy_cores(2.0)) > MAX_BUSY_CORES and time.monotonic() < deadline:
        print(f"waiting for an idle machine: {busy:.1f} cores are busy")
    return busy


def make_heading(options: BenchOptions, busy: float) -> str:
    libraries = ", ".join(f"{name} {version(name)}" for name in (*LIBRARIES, *ENGINES))
    return "\n".join(
        [
            "# Results",
            "",
            "Written by `make bench`. Server and client run on different cores and servers "
            f"alternate; {options.rounds} rounds. Ratios are medians over the rounds, with their "
            "range.",
            "",
            f"- Date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
            f"- Machine: {describe_machine()}; other processes used {busy:.2f} cores",
            f"- Python {platform.python_version()}, Linux {platform.release()}",
            f"- {libraries}",
            f"- Model: {Path(options.model).name}",
            "",
        ]
    )


def find_model_file() -> str:
    """Return the path of the default model; download it if it is not installed."""
    path = os.environ.get("DRAGOMAN_TEST_MODEL")
    if path:
        return path
    from dragoman.config import Settings
    from dragoman.models.pull import pull

    return str(pull("smollm2-135m", Settings().models_path))


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", choices=[[], *PARTS], metavar="PART", help="a to k (default: all)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds")
    parser.add_argument("--window", type=float, default=3.0, help="seconds of one measurement")
    parser.add_argument("--tokens", type=int, default=96, help="length of a real model's answer")
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds to wait for an idle machine"
    )
    arguments = parser.parse_args()
    busy = wait_until_idle(arguments.patience)
    options = BenchOptions(
        rounds=arguments.rounds,
        window=arguments.window,
        model=find_model_file(),
        tokens=arguments.tokens,
    )
    sections = [make_heading(options, busy)]
    for name in arguments.parts or PARTS:
        started = time.monotonic()
        sections.append(str(PARTS[name](options)))
        print(sections[-1])
        print(f"({time.monotonic() - started:.0f} s)\n")
    if not arguments.parts:
        folder = ROOT / "bench"
        sections.append((folder / "gpu_results.md").read_text(encoding="utf-8"))
        (folder / "RESULTS.md").write_text("\n".join(sections), encoding="utf-8")


if __name__ == "__main__":
    main()
