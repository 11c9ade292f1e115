"""Loads a model of any kind: chooses its engine, and calls the loader of its files.

GGUF files are run by llama.cpp, directories of safetensors by vLLM, and models of an upstream by
the server there. An operator can name another engine as an import string, `module:function`: the
function is called with the path of the model and with the `engine_arg`s, and returns an engine. It
runs in a child process, like every engine that loads files.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from dragoman.engines import get_factory, is_import_string
from dragoman.engines.factory_import import check_factory
from dragoman.engines.vllm.installation import INSTALL_COMMAND, find_interpreter
from dragoman.errors import ModelBroken
from dragoman.models.catalog import ModelSource
from dragoman.models.loaders import custom, gguf, safetensors
from dragoman.models.loaders.gguf import HANG_TIMEOUT
from dragoman.models.model import Model

AUTOMATIC = "auto"
ENGINES = {"gguf": gguf.ENGINE, "safetensors": safetensors.ENGINE}  # by kind of model
KINDS = {"llamacpp": "GGUF files", "vllm": "directories of safetensors"}


class LoadSettings(Struct, frozen=True, kw_only=True):
    """What all loads of a server have in common."""

    hang_timeout: float = HANG_TIMEOUT  # seconds without progress, then an engine is restarted
    engines: Path = Path()  # where engines with environments of their own are installed
    upstream_key: str = ""  # of other servers that have no key file


async def load(source: ModelSource, settings: LoadSettings | None = None) -> Model:
    """Load a model into its own engine."""
    settings = settings or LoadSettings()
    if source.kind == "remote":
        from dragoman.models.loaders import remote

        return await remote.load(source, settings.upstream_key)
    engine = choose_engine(source)
    if is_import_string(engine):
        return await custom.load(source, engine, settings.hang_timeout)
    if engine == gguf.ENGINE:
        return await gguf.load(source, settings.hang_timeout)
    interpreter = find_interpreter(settings.engines)
    if interpreter is None:
        raise make_missing_error()
    return await safetensors.load(source, interpreter, settings.hang_timeout)


def check_engine(source: ModelSource, engines: Path) -> None:
    """Raise `ModelBroken` if there is no engine for a model."""
    if source.kind == "remote":
        return
    engine = choose_engine(source)
    if is_import_string(engine):
        check_factory(engine)
    elif engine == safetensors.ENGINE and find_interpreter(engines) is None:
        raise make_missing_error()


def check_engine_name(name: str) -> None:
    """Raise a `ValueError` with the choices unless an engine has this name."""
    if name != AUTOMATIC:
        get_factory(name)


def choose_engine(source: ModelSource) -> str:
    """Return the name or the import string of the engine for a model, or raise `ModelBroken`."""
    name = source.options.engine or AUTOMATIC
    fitting = ENGINES[source.kind]
    if name in (AUTOMATIC, fitting):
        return fitting
    if is_import_string(name):
        return name
    try:
        check_engine_name(name)
    except ValueError as error:
        raise ModelBroken(str(error)) from None
    raise ModelBroken(f"The engine {name} runs {KINDS[name]}; this model needs {fitting}.")


def make_missing_error() -> ModelBroken:
    return ModelBroken(
        f"It is stored as safetensors, which vLLM runs. Install vLLM with: {INSTALL_COMMAND}"
    )
