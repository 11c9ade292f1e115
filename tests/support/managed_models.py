"""A server whose models are files that clients may manage, and whose engines are scripted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dragoman import config
from dragoman.engines.adapter import adapt
from dragoman.http.server import make_app
from dragoman.models.catalog import ModelSource
from dragoman.models.loaders.assemble import choose_chat_template
from dragoman.models.loaders.engine import EngineModelOptions, make_engine_model
from dragoman.models.loaders.model_preset import make_preset
from dragoman.models.model import Model
from dragoman.models.registry import ModelRegistry
from dragoman.runtime import build_runtime, make_policy, open_catalog
from dragoman.testing import ScriptedEngine
from tests.support.model_files import write_model_file
from tests.support.serving import QUIET, RunningServer, run_app

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


async def load_scripted(source: ModelSource) -> Model:
    engine = ScriptedEngine(f"I am {source.id}.", tokens=True, context=2048, grammars=True)
    template = choose_chat_template(source, TEMPLATE)
    options = EngineModelOptions(name=source.id, chat_template=template)
    model = make_engine_model(adapt(engine), options)
    model.preset = make_preset(source.options, model.renderer, source.id)
    return model


@contextmanager
def serve_managed(
    root: Path, installed: Sequence[str] = ("writer",), **options: Any
) -> Iterator[RunningServer]:
    """Serve the files of a models directory; `installed` are written if they are missing."""
    for name in installed:
        if not (root / f"{name}.gguf").exists():
            write_model_file(root / f"{name}.gguf", general_license="mit")
    root.mkdir(exist_ok=True, parents=True)
    given = {"port": 0, "store": "sqlite://", "models_dir": str(root), **QUIET, **options}
    settings = config.load(given)
    models = ModelRegistry(open_catalog(settings), load_scripted, make_policy(settings))
    with run_app(make_app(build_runtime(models, settings), local=True)) as server:
        yield server
