"""The tokenizer and the chat template of a model that another server runs.

They come from the place that the operator names (`--tokenizer`), else from those that the server
names: the model's file or directory, if this machine has it, too, or its name on Hugging Face,
whose small files are downloaded. Only another Dragoman sends its tokenizer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from dragoman.detection.sources import TOKENIZER_FILE, read_template_source
from dragoman.engines.llamacpp import gguf
from dragoman.errors import DragomanError, ModelBroken
from dragoman.models.downloads.hub import fetch_tokenizer_files, is_hub_name
from dragoman.models.upstream.probe_client import ProbeClient
from dragoman.models.upstream.server_info import ServerInfo
from dragoman.tokenizers.serialize import deserialize_tokenizer
from dragoman.tokenizers.tokenizer import (
    AnyTokenizer,
    TextEngine,
    Tokenizer,
    tokenizer_from_directory,
    tokenizer_from_gguf,
)

log = logging.getLogger("dragoman.upstream")

FetchFiles = Callable[[str], Path]


class TokenizerPlace(Struct, frozen=True, kw_only=True):
    """Where a tokenizer was found, and the other files that were found with it."""

    path: Path = Path()  # a GGUF file or a directory
    name: str  # for messages: of a file, only its name
    template: str | None = None
    metadata: Mapping[str, object] = {}  # of a GGUF file
    tokenizer: Tokenizer | None = None  # sent by the server

    @property
    def directory(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    def read_tokenizer(self, engine: TextEngine | None = None) -> AnyTokenizer | None:
        """Build the tokenizer; one that cannot be built asks the engine, if there is one."""
        if self.tokenizer is not None:
            return self.tokenizer
        if self.metadata:
            return tokenizer_from_gguf(self.metadata, engine)
        return tokenizer_from_directory(self.path, engine)


def find_tokenizer(
    info: ServerInfo, chosen: str | None, fetch: FetchFiles = fetch_tokenizer_files
) -> TokenizerPlace | None:
    """Return where the tokenizer is: the operator's choice, else what the server names.

    Raises `ModelBroken` if the operator's choice cannot be used.
    """
    if chosen is not None:
        return open_place(chosen, fetch)
    for place in info.tokenizer_places:
        try:
            return open_place(place, fetch)
        except DragomanError as error:
            log.info("the server names the tokenizer %s: %s", place, error.message)
    return None


def fetch_tokenizer(client: ProbeClient, info: ServerInfo) -> TokenizerPlace | None:
    """Return the tokenizer that a server sends, if it does."""
    if not info.tokenizer_path:
        return None
    answer = client.get(info.tokenizer_path)
    if not answer.is_ok:
        log.info("the server does not send its tokenizer: it answers %d", answer.status)
        return None
    return TokenizerPlace(name="the server", tokenizer=deserialize_tokenizer(answer.body))


def open_place(place: str, fetch: FetchFiles = fetch_tokenizer_files) -> TokenizerPlace:
    """Open a directory, a GGUF file or a name on Hugging Face, or raise a `DragomanError`."""
    path = Path(place).expanduser()
    if path.name == TOKENIZER_FILE and path.is_file():
        path = path.parent
    if path.is_dir() and not (path / TOKENIZER_FILE).is_file():
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1:
            raise ModelBroken(f"The directory has neither a {TOKENIZER_FILE} nor one GGUF file.")
        path = files[0]
    if path.is_file():
        return _open_gguf(path)
    is_fetched = not path.is_dir()
    if is_fetched:
        if path.is_absolute() or not is_hub_name(place):
            raise ModelBroken(
                "--tokenizer must be a directory with a tokenizer.json, a GGUF file, or the name "
                "of a model on Hugging Face, such as Qwen/Qwen3-4B."
            )
        path = fetch(place)
    source = read_template_source(path)
    template = None if source is None else source.template
    name = place if is_fetched else path.name
    return TokenizerPlace(path=path, name=name, template=template)


def _open_gguf(path: Path) -> TokenizerPlace:
    header = gguf.read_header(path)
    if not header.tokens:
        raise ModelBroken("The GGUF file has no tokenizer.")
    return TokenizerPlace(
        path=path, name=path.name, template=header.chat_template, metadata=header.metadata
    )
