"""The commands of pages that need vLLM on one machine, as they are written.

A process on the CPU takes the place of each GPU, and a small model with random weights that of each
directory the pages name. `make test-vllm` has installed the engine, so `dragoman engine install`
finds it complete.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dragoman.models.environments.install import CPU, detect_device
from tests.support.doc_blocks.blocks import DocBlock, list_blocks_of, run_blocks
from tests.support.doc_blocks.workspace import Workspace
from tests.support.safetensors_model import write_small_directory
from tests.support.vllm_model import ENGINES, VARIABLES

pytestmark = pytest.mark.skipif(
    detect_device() != CPU, reason="the command would replace the CPU build by that for CUDA"
)
BLOCKS = [block for block in list_blocks_of("test-vllm") if not block.machines]
DIRECTORY = re.compile(r"dragoman serve \./(\S+)")
START_SECONDS = 900  # eight workers on two cores
# GiB of KV cache for each worker, instead of a share of the machine's memory
CACHE = {"VLLM_CPU_KVCACHE_SPACE": "1", "DRAGOMAN_HANG_TIMEOUT": "300"}
# code that torch generates for a CPU with AMX dies where a virtual machine only advertises it
EAGER = {"TORCHDYNAMO_DISABLE": "1"}


@run_blocks(*([block] for block in BLOCKS))
def test_commands_work_as_pasted(
    example: list[DocBlock], default_model: Path, tmp_path: Path
) -> None:
    [block] = example
    with Workspace(tmp_path, default_model, [block]) as workspace:
        for name in DIRECTORY.findall(block.text):
            write_small_directory(default_model, workspace.directory / name)
        workspace.environment |= VARIABLES | CACHE | EAGER | {"DRAGOMAN_ENGINES_DIR": str(ENGINES)}
        workspace.block_seconds = START_SECONDS
        assert '"completion_tokens":1,' in workspace.run(block)
