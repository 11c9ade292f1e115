"""Our server on vLLM against `vllm serve` and its Rust front end, on the same weights and machine.

    python -m bench.vllm_serving MODEL --client client.py [--streams 64,256] [--rounds 3]

All servers run at once, each with a share of the GPU's memory, and take turns: in each round every
server gets the same load, one after the other, so that a machine that is slower for a minute is
slower for all. The weights may be random (`--load-format dummy`), since only speed is measured. The
client of the GPU bundle (`--client`) makes the load in several processes, request after request for
`--seconds`. The program runs on a machine without network: it imports only packages that vLLM and
the server need. Prints one JSON line for each measurement, and the medians with their ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct

from bench.measure import find_free_port, list_process_tree

MODEL_NAME = "m"
CLIENTS = 4  # processes
FRONTS = ("ours", "python", "rust")
START_SECONDS = 420
CALIBRATION_WORDS = 64


class Front(Struct, frozen=True):
    """A server that accepts requests."""

    name: str
    port: int
    pid: int


def main() -> None:
    options = read_options()
    with ExitStack() as stack:
        log = Path(options.out) / "servers.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        ports = {name: find_free_port() for name in options.fronts}
        started = [
            stack.enter_context(start_front(name, ports[name], options, log)) for name in ports
        ]
        fronts = [wait_until_up(front, log) for front in started]
        words = write_words(options)
        counts = {front.name: calibrate(front, options, words) for front in fronts}
        results = list(measure_rounds(fronts, options, words, counts))
    print_summary(results)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("model", help="directory with config and tokenizer")
    parser.add_argument("--client", required=True, help="client.py of the GPU bundle")
    parser.add_argument("--vllm-python", default=sys.executable, help="Python that has vLLM")
    parser.add_argument("--fronts", default=",".join(FRONTS), type=lambda text: text.split(","))
    parser.add_argument(
        "--streams", default="64,256", type=lambda text: [int(part) for part in text.split(",")]
    )
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument("--seconds", default=8.0, type=float)
    parser.add_argument("--prompt-tokens", default=128, type=int)
    parser.add_argument("--tokens", default=256, type=int)
    parser.add_argument("--slots", default=256, type=int)
    parser.add_argument("--context", default=2048, type=int)
    parser.add_argument("--memory-share", default=0.28, type=float, help="of the GPU, per server")
    parser.add_argument("--load-format", default="dummy")
    parser.add_argument("--cpu", action="store_true", help="run on the CPU, in 32-bit floats")
    parser.add_argument("--engine-dir", default="", help="--engines-dir of our server")
    parser.add_argument("--engine-args", default={}, type=json.loads, help="more for vLLM, as JSON")
    parser.add_argument("--out", default=os.environ.get("OUT", "bench-vllm"))
    return parser.parse_args()


def list_engine_arguments(options: argparse.Namespace) -> dict[str, object]:
    """Return the arguments of vLLM that all servers get."""
    arguments: dict[str, object] = {"load_format": options.load_format, **options.engine_args}
    if options.cpu:
        return arguments | {
            "dtype": "float32",
            "enforce_eager": True,
            "kv_cache_memory_bytes": 1 << 29,
        }
    return arguments | {"gpu_memory_utilization": options.memory_share}


def make_command(name: str, port: int, options: argparse.Namespace) -> list[str]:
    arguments = list_engine_arguments(options)
    if name == "ours":
        command = [sys.executable, "-m", "dragoman", "serve", options.model, "--port", str(port)]
        command += ["--served-name", MODEL_NAME, "--slots", str(options.slots)]
        command += ["--context", str(options.context), "--queue", "4096", "--log-level", "warning"]
        command += ["--engines-dir", options.engine_dir] if options.engine_dir else []
        for key, value in arguments.items():
            command += ["--engine-arg", f"{key}={json.dumps(value)}"]
        return command
    command = [options.vllm_python, "-m", "vllm.entrypoints.cli.main", "serve", options.model]
    if options.cpu:  # the command of the CPU build looks for the metadata of another package
        command[2:] = ["vllm.entrypoints.openai.api_server", "--model", options.model]
    command += ["--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--max-model-len", str(options.context), "--max-num-seqs", str(options.slots)]
    if name == "python":
        command += ["--uvicorn-log-level", "warning"]
    for key, value in arguments.items():
        flag = f"--{key.replace('_', '-')}"
        command += (
            [flag]
            if value is True
            else [flag, value if isinstance(value, str) else json.dumps(value)]
        )
    return command


@contextmanager
def start_front(
    name: str, port: int, options: argparse.Namespace, log: Path
) -> Iterator[tuple[Front, subprocess.Popen[bytes]]]:
    environment = os.environ | ({"VLLM_USE_RUST_FRONTEND": "1"} if name == "rust" else {})
    with log.open("ab") as output:
        process = subprocess.Popen(
            make_command(name, port, options),
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
    try:
        yield Front(name, port, process.pid), process
    finally:
        stop_tree(process)


def stop_tree(process: subprocess.Popen[bytes]) -> None:
    """Stop a server and all processes that it has started."""
    family = list_process_tree(process.pid)
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in family[1:]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def wait_until_up(started: tuple[Front, subprocess.Popen[bytes]], log: Path) -> Front:
    front, process = started
    path = "/health/ready" if front.name == "ours" else "/health"
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{front.port}{path}", timeout=2) as reply:
                if reply.status == 200:
                    return front
        except OSError:
            time.sleep(0.3)
    raise SystemExit(f"{front.name} did not start:\n{log.read_text(errors='replace')[-4000:]}")


def write_words(options: argparse.Namespace) -> Path:
    """Write a list of words that are one token each."""
    content = json.loads((Path(options.model) / "tokenizer.json").read_bytes())
    vocabulary = content["model"]["vocab"]
    words = sorted(
        f" {text[1:]}"
        for text in vocabulary
        if text.startswith("Ġ") and text[1:].isascii() and text[1:].isalpha() and 3 < len(text) < 9
    )
    file = Path(options.out) / "words.json"
    file.write_text(json.dumps(words[:20000]))
    return file


def run_clients(
    front: Front, options: argparse.Namespace, words: Path, **load: float
) -> dict[str, list[object]]:
    """Run the clients; return their requests, and what went wrong."""
    streams = int(load["streams"])
    count = min(CLIENTS, streams)
    with tempfile.TemporaryDirectory() as folder:
        start_at = time.perf_counter() + 1.0
        clients = []
        for number in range(count):
            share = streams // count + (number < streams % count)
            arguments = {
                "port": front.port,
                "model": MODEL_NAME,
                "conc": share,
                "seconds": load["seconds"],
                "prompt_words": int(load["prompt_words"]),
                "max_tokens": int(load["tokens"]),
                "words": str(words),
                "out": f"{folder}/{number}.json",
                "start_at": start_at,
                "seed": time.time_ns() + number,
                "once": not load["seconds"],
            }
            command = [sys.executable, options.client, json.dumps(arguments)]
            clients.append(subprocess.Popen(command))
        for client in clients:
            client.wait(load["seconds"] + 180)
        parts = [json.loads(file.read_bytes()) for file in Path(folder).glob("*.json")]
    return {
        "requests": [request for part in parts for request in part["reqs"]],
        "errors": [error for part in parts for error in part["errors"]],
    }


def calibrate(front: Front, options: argparse.Namespace, words: Path) -> int:
    """Return how many words make a prompt of the wanted length; warm the server up."""
    load = {"streams": 1, "seconds": 0.0, "prompt_words": CALIBRATION_WORDS, "tokens": 4}
    found = run_clients(front, options, words, **load)
    if found["errors"]:
        raise SystemExit(f"{front.name}: {found['errors'][:2]}")
    [request] = found["requests"]
    assert isinstance(request, list)
    template_tokens = int(request[4]) - CALIBRATION_WORDS
    count = int(options.prompt_tokens) - template_tokens
    for streams in options.streams:
        run_clients(
            front, options, words, streams=streams, seconds=0.0, prompt_words=count, tokens=32
        )
    return count


def read_cpu(front: Front) -> dict[str, float]:
    """Return the CPU seconds of the processes of a server, by what they do."""
    seconds: dict[str, float] = {}
    for pid in list_process_tree(front.pid):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        name, _, rest = stat.partition("(")[2].rpartition(")")
        fields = rest.split()
        role = find_role(pid == front.pid, name.encode() + b" " + command)
        ticks = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        seconds[role] = seconds.get(role, 0.0) + ticks
    return seconds


def find_role(is_main: bool, text: bytes) -> str:
    if b"EngineCor" in text:
        return "engine_core"
    if b"Worker" in text:
        return "worker"
    if b"vllm-rs" in text:
        return "front"
    if b"engines.subprocess.child" in text:
        return "engine_child"
    return "front" if is_main or b"APIServer" in text else "other"


def measure_rounds(
    fronts: Sequence[Front], options: argparse.Namespace, words: Path, counts: dict[str, int]
) -> Iterator[dict[str, object]]:
    for number in range(options.rounds):
        turn = number % len(fronts)
        for streams in options.streams:
            for front in (*fronts[turn:], *fronts[:turn]):
                result = measure(front, options, words, streams, counts[front.name])
                result |= {"front": front.name, "streams": streams, "round": number}
                print(json.dumps(result), flush=True)
                yield result


def measure(
    front: Front, options: argparse.Namespace, words: Path, streams: int, count: int
) -> dict[str, object]:
    before = read_cpu(front)
    load = {"streams": streams, "seconds": options.seconds, "prompt_words": count}
    found = run_clients(front, options, words, tokens=options.tokens, **load)
    after = read_cpu(front)
    requests = [request for request in found["requests"] if isinstance(request, list)]
    if not requests:
        return {"errors": found["errors"][:3]}
    tokens = sum(int(request[5] or 0) for request in requests)
    begin, end = min(request[0] for request in requests), max(request[3] for request in requests)
    gaps = sorted(
        later - earlier
        for request in requests
        for earlier, later in zip(request[2], request[2][1:], strict=False)
    )
    return {
        "tokens_per_second": round(tokens / (end - begin), 1),
        "requests": len(requests),
        "errors": found["errors"][:3],
        "first_event_ms": round(1e3 * statistics.median(r[1] - r[0] for r in requests), 2),
        "gap_p50_ms": round(1e3 * gaps[len(gaps) // 2], 2) if gaps else None,
        "gap_p99_ms": round(1e3 * gaps[int(0.99 * len(gaps))], 2) if gaps else None,
        "cpu_us_per_token": {
            role: round((seconds - before.get(role, 0.0)) / tokens * 1e6, 1)
            for role, seconds in after.items()
        },
    }


def print_summary(results: Sequence[dict[str, object]]) -> None:
    """Print the median of each server, and how it compares with ours."""
    speeds: dict[tuple[int, str], list[float]] = {}
    for result in results:
        speed, streams = result.get("tokens_per_second"), result["streams"]
        if isinstance(speed, float) and isinstance(streams, int):
            speeds.setdefault((streams, str(result["front"])), []).append(speed)
    for (streams, name), values in sorted(speeds.items()):
        ours = speeds.get((streams, "ours"), [])
        ratio = statistics.median(ours) / statistics.median(values) if ours else float("nan")
        print(
            f"{streams:4} streams  {name:7} {statistics.median(values):10.1f} tokens/s"
            f"  ours is {ratio:.2f}x"
        )


if __name__ == "__main__":
    main()
