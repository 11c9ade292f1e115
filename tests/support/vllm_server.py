"""vLLM's own OpenAI server as a separate process, from the environment of `make test-vllm`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from dragoman.engines.vllm.installation import find_interpreter
from tests.support.vllm_model import ENGINES, MODELS, NAME, VARIABLES

START_SECONDS = 600.0
ARGUMENTS = {
    "dtype": "float32",
    "max-model-len": "2048",
    "max-num-seqs": "8",
    "kv-cache-memory-bytes": str(1 << 28),
    "block-size": "32",
    "generation-config": "vllm",
    "structured-outputs-config": '{"backend": "guidance"}',
}
FLAGS = (
    "enforce-eager",
    "enable-prompt-tokens-details",
    "enable-scale-out",
    # on the CPU, vLLM 0.32 dies where a seeded request reads its prompt in several parts
    "no-enable-chunked-prefill",
)


@contextmanager
def run_vllm_server(log: Path, *, without: tuple[str, ...] = ()) -> Iterator[str]:
    """Serve SmolLM2 with vLLM's own server, and yield the address; `without` leaves out flags."""
    interpreter = find_interpreter(ENGINES)
    assert interpreter is not None, "run `make test-vllm`, which installs vLLM"
    port = _find_port()
    command = [interpreter.python, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(MODELS / NAME), "--host", "127.0.0.1", "--port", str(port)]
    command += [word for name, value in ARGUMENTS.items() for word in (f"--{name}", value)]
    command += [f"--{flag}" for flag in FLAGS if flag not in without]
    variables = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind"} | VARIABLES
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(process, url, log)
            yield url
        finally:
            _stop(process)


def _find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, f"vLLM did not start:\n{log.read_text()[-4000:]}"
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError(f"vLLM is not ready:\n{log.read_text()[-4000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and the processes that it started, which are in its session."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(30)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
