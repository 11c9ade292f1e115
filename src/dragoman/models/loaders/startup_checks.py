"""Checks options at start-up that would otherwise fail only when a model is loaded.

The messages name paths: they are for the operator, never for a client.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman.engines.llamacpp import gguf
from dragoman.engines.llamacpp.media.projector import NONE as NO_PROJECTOR
from dragoman.engines.vllm.adapters import read_rank
from dragoman.errors import DragomanError, ModelBroken
from dragoman.models.catalog import ModelCatalog, ModelSource
from dragoman.models.loaders.assemble import read_chat_template_file
from dragoman.models.loaders.gguf import ENGINE
from dragoman.models.loaders.loader import check_engine, choose_engine
from dragoman.models.projectors import read_model_projector
from dragoman.prompt.template.template import compile_template


def check_models(catalog: ModelCatalog, sources: Sequence[ModelSource], engines: Path) -> None:
    """Check the first model completely and the files that options of any model name.

    `engines` is where engines are installed.

    Raises `ModelBroken`.
    """
    default = sources[0] if catalog.listing_error is None else None
    if default is not None and default.broken is not None:
        raise ModelBroken(f"model `{default.id}`: {default.path}: {default.broken}")
    for source in sources:
        try:
            if source is default:
                check_engine(source, engines)
                _check_draft(catalog.resolve_draft(source))
            check_option_files(source)
        except DragomanError as error:
            raise ModelBroken(f"model `{source.id}`: {error.message}") from None


def check_option_files(source: ModelSource) -> None:
    """Check the chat template, projector and LoRA adapters that the options of a model name."""
    template = source.options.chat_template
    if template is not None:
        _check_exists(template, "chat_template")
        try:
            compile_template(read_chat_template_file(Path(template)))
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or "it is not text in UTF-8"
            raise ModelBroken(f"{template} (chat_template): {problem}") from None
        except DragomanError as error:
            raise ModelBroken(f"{template} (chat_template): {error.message}") from None
    if source.kind == "remote":
        for name in ("upstream_key_file", "upstream_ca"):
            file = getattr(source.options, name)
            if file is not None:
                _check_exists(file, name)
        return
    _check_projector(source)
    uses_gguf = choose_engine(source) == ENGINE
    for name, file in source.options.lora.items():
        if not uses_gguf:
            _check_adapter_directory(name, file)
            continue
        _check_exists(file, f"LoRA adapter `{name}`")
        try:
            kind = gguf.read_header(Path(file), arrays=False).kind
        except ModelBroken as error:
            raise ModelBroken(f"{file} (LoRA adapter `{name}`): {error.message}") from None
        if kind != "adapter":
            raise ModelBroken(f"{file} (LoRA adapter `{name}`): the file is not an adapter.")


def _check_draft(source: ModelSource) -> None:
    file = source.options.draft_model
    if file is not None:
        try:
            gguf.read_header(Path(file), arrays=False)
        except ModelBroken as error:
            raise ModelBroken(f"{file} (draft model): {error.message}") from None


def _check_projector(source: ModelSource) -> None:
    """Check the projector file that an option names; one next to the model is read at load."""
    file = source.options.mmproj
    if file not in (None, NO_PROJECTOR):
        _check_exists(file, "mmproj")
        read_model_projector(source)


def _check_adapter_directory(name: str, path: str) -> None:
    """Check an adapter in the format of PEFT."""
    try:
        read_rank(path)
    except ModelBroken as error:
        raise ModelBroken(f"{path} (LoRA adapter `{name}`): {error.message}") from None


def _check_exists(path: str, option: str) -> None:
    if not Path(path).is_file():
        raise ModelBroken(f"there is no file {path!r} ({option}).")
