"""SmolLM2 as safetensors in a real vLLM, for the tests of `make test-vllm`.

`VLLM_FOLDER` holds the engine, installed by `dragoman engine install`, and the models, made from
the default GGUF file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dragoman import config, runtime
from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.engines.subprocess.restart_schedule import Timing
from dragoman.engines.vllm.installation import find_interpreter
from dragoman.http.server import make_app
from dragoman.models.catalog import ModelCatalog
from dragoman.models.loaders.assemble import ModelDetails, make_model
from dragoman.models.loaders.safetensors import make_engine
from dragoman.models.mapping import ModelOptions
from dragoman.models.model import Model
from tests.support.paths import ROOT, TEMPLATES
from tests.support.safetensors_model import write_directory, write_float_gguf, write_tensors
from tests.support.serving import RunningServer, run_app

FOLDER = Path(os.environ.get("VLLM_FOLDER", ROOT / ".vllm"))
ENGINES, MODELS = FOLDER / "engines", FOLDER / "models"
NAME = "smollm2-135m"
# Some machines announce instructions that they cannot execute; no kernels are compiled.
VARIABLES = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "VLLM_CPU_CI_ENV": "1"}
# The stages of a pipeline have no tensors for what they receive before vLLM has warmed up, which it
# leaves out where it compiles nothing (`enforce_eager`), and in its own tests.
WARM_UP = {"VLLM_CPU_CI_ENV": "0", "TORCHDYNAMO_DISABLE": "1", "VLLM_USE_AOT_COMPILE": "0"}
ARGUMENTS = {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 1 << 28}
HANG_SECONDS = 60.0
RANK = 4
ADAPTER_FIELDS = {"target_modules": ["q_proj"], "bias": "none", "task_type": "CAUSAL_LM"}


def prepare_models(default_model: Path) -> None:
    """Make the directory of safetensors and the GGUF file with the same weights."""
    directory, file = MODELS / NAME, MODELS / f"{NAME}-f32.gguf"
    if not (directory / "chat_template.jinja").exists():
        write_directory(default_model, directory)
    if not file.exists():
        partial = file.with_suffix(".partial")
        write_float_gguf(default_model, partial)
        partial.rename(file)


def write_adapter(folder: Path, seed: int = 1) -> Path:
    """Write a PEFT adapter of the model, large enough to change what it answers."""
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(30):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        for part, shape in (("lora_A", (RANK, 576)), ("lora_B", (576, RANK))):
            tensors[f"{name}.{part}.weight"] = random.normal(0, 0.4, shape).astype(np.float32)
    folder.mkdir(parents=True)
    write_tensors(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, **ADAPTER_FIELDS})
    )
    return folder


def make_vllm_engine(
    *, hang_timeout: float = HANG_SECONDS, arguments: dict[str, Any] | None = None, **options: Any
) -> SubprocessEngine:
    """Make an engine that is not started."""
    interpreter = find_interpreter(ENGINES)
    assert interpreter is not None, "run `make test-vllm`, which installs vLLM"
    fields = {"context": 1024, "slots": 8, "threads": 1} | options
    fields["engine_arg"] = ARGUMENTS | (arguments or {})
    source = ModelCatalog().open_path(MODELS / NAME, ModelOptions(**fields))
    return make_engine(source, interpreter, hang_timeout)


def make_slow_timing() -> Timing:
    return Timing(first_restart_delay=0.01, restart_wait=300.0)


@contextmanager
def serve_vllm(path: Path = MODELS / NAME, **options: Any) -> Iterator[RunningServer]:
    """Run `dragoman serve DIR`, in this process."""
    arguments = tuple(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in ARGUMENTS.items()
    )
    defaults: dict[str, Any] = {
        "port": 0,
        "store": "sqlite://",
        "engines_dir": str(ENGINES),
        "engine_arg": (*arguments, *options.pop("engine_arg", ())),
        "context": 1024,
        "slots": 8,
        "threads": 1,
        "hang_timeout": HANG_SECONDS,
    }
    settings = config.load(defaults | options)
    models = runtime.build_models(settings, str(path))
    with run_app(make_app(runtime.build_runtime(models, settings), local=True)) as server:
        server.run_coroutine(models.load(path.name, wait=float("inf")), 600)
        yield server


def get_model(server: RunningServer) -> Model:
    [model] = server.app.runtime.services.models.list_loaded()
    return model


@contextmanager
def use_template(server: RunningServer, template: str) -> Iterator[None]:
    """Give the loaded model another chat template, without starting its engine again."""
    model = get_model(server)
    before = {name: getattr(model, name) for name in Model.__struct_fields__}
    source = ModelCatalog().open_path(MODELS / NAME)
    text = (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")
    engine = model.engine
    assert isinstance(engine, SubprocessEngine)
    details = ModelDetails(directory=MODELS / NAME, template=text)
    changed = make_model(source, engine, model.tokenizer, details)
    try:
        for name in before:
            setattr(model, name, getattr(changed, name))
        yield
    finally:
        for name, value in before.items():
            setattr(model, name, value)
