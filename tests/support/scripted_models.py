"""A server of several models, each with a scripted engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dragoman import config
from dragoman.engines.adapter import adapt
from dragoman.http.server import make_app
from dragoman.models.catalog import ModelCatalog, ModelSource
from dragoman.models.loaders.engine import EngineModelOptions, make_engine_model
from dragoman.models.model import Model
from dragoman.models.registry import ModelRegistry
from dragoman.runtime import build_runtime, make_policy
from dragoman.testing import ScriptedEngine
from tests.support.model_files import write_model_file
from tests.support.serving import QUIET, RunningServer, run_app


async def load_scripted(source: ModelSource) -> Model:
    engine = ScriptedEngine(f"I am {source.id}.", tokens=True, context=2048, scores=True)
    return make_engine_model(adapt(engine), EngineModelOptions(name=source.id))


@contextmanager
def serve_models(
    root: Path, installed: Sequence[str], named: Sequence[str] = (), **options: Any
) -> Iterator[RunningServer]:
    """Serve the installed models; `named` are those that the operator names at the start."""
    catalog = ModelCatalog(root)
    for name in installed:
        write_model_file(root / f"{name}.gguf")
    for name in named:
        catalog.add(catalog.open_path(root / f"{name}.gguf"))
    settings = config.load({"port": 0, "store": "sqlite://", **QUIET, **options})
    models = ModelRegistry(catalog, load_scripted, make_policy(settings))
    with run_app(make_app(build_runtime(models, settings), local=True)) as server:
        yield server
