"""Other servers that stand in front of a model server: LiteLLM's proxy, and SGLang's gateway.

They have an environment of their own (`make bench-gateways`), because their pins clash with ours.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.measure import ROOT, RunningPeer, find_free_port, run_server

PROGRAMS = ROOT / "bench" / ".gateways" / "bin"
MODEL = "bench"


def list_missing() -> list[str]:
    """Return the gateways that are not installed."""
    return [name for name in ("litellm", "smg") if not (PROGRAMS / name).exists()]


def start_litellm(stack: ExitStack, url: str) -> RunningPeer:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    model = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{url}/v1", "api_key": "none"}
    settings = {
        "model_list": [{"model_name": MODEL, "litellm_params": model}],
        # it listens on loopback for the time of the benchmark
        "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},
    }
    (directory / "config.yaml").write_text(json.dumps(settings))
    port = find_free_port()
    flags = ["--config", str(directory / "config.yaml"), "--host", "127.0.0.1"]
    # it ends streams that repeat a chunk, which is all that the script does
    program = ["env", "REPEATED_STREAMING_CHUNK_LIMIT=1000000", str(PROGRAMS / "litellm")]
    command = [*program, *flags, "--port", str(port), "--telemetry", "False"]
    return stack.enter_context(run_server("litellm", command, port, program=()))


def start_smg(stack: ExitStack, url: str) -> RunningPeer:
    port = find_free_port()
    flags = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", url]
    policy = ["--policy", "round_robin", "--backend", "vllm", "--log-level", "warn"]
    metrics = ["--prometheus-port", str(find_free_port())]
    command = [str(PROGRAMS / "smg"), "launch", *flags, *policy, *metrics]
    return stack.enter_context(run_server("smg", command, port, program=()))
