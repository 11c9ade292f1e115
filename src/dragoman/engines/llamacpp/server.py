"""The native server inside this process: how it is set up, started and found again.

It listens on a unix socket in a directory that only this user can enter, behind a random key, and
on no port. Its threads are native, so Python's loop stays free. A second one with the same weights
(mapped from the same file) answers embeddings, because one context cannot do both; it is started
when the first embedding is asked for.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from dragoman.engines.llamacpp.client import NativeClient
from dragoman.engines.llamacpp.gguf import GgufHeader
from dragoman.errors import ModelBroken

log = logging.getLogger("dragoman.llamacpp")

PREFIX = "dragoman-engine-"
CONTEXT = 8192  # unless the model was trained for less
EMBED_CONTEXT = 2048
CPU_BATCH, GPU_BATCH, MICRO_BATCH = 128, 2048, 512


class LlamaCppSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model is run. What is None is found out."""

    path: str
    context: int | None = None  # tokens of one conversation; 0 is "not said" too
    slots: int = 4  # choices that run at once; each has room for a whole context
    threads: int | None = None
    gpu_layers: int | None = None  # all of them where there is a GPU
    batch: int | None = None  # prompt tokens between two looks at who has gone away
    lora: dict[str, str] = {}  # name -> adapter file
    embeddings: bool = True
    embed_context: int = EMBED_CONTEXT  # tokens of a text to embed; memory grows with it
    cache: int = 512  # MiB of memory for prompts that have lost their slot
    exact: bool = False  # same seed, same tokens, whatever else runs: see `_memory`


class NativeServer:
    """A running server, its socket's directory and a client for it."""

    def __init__(self, server: Any, folder: str, client: NativeClient) -> None:
        self.server = server
        self.client = client
        self._folder = folder

    def close(self) -> None:
        """Let the server go; nothing may be running on it any more."""
        self.server = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def leave_running(self) -> None:
        """Leave the server running: it cannot be stopped while it is busy."""
        shutil.rmtree(self._folder, ignore_errors=True)
        _kept.append(self.server)


_kept: list[Any] = []


def get_context_size(settings: LlamaCppSettings, header: GgufHeader) -> int:
    trained = header.context_length or CONTEXT
    return min(settings.context or min(trained, CONTEXT), trained)


def launch(
    settings: LlamaCppSettings, header: GgufHeader, *, special: bool = True, embedding: bool = False
) -> NativeServer:
    """Start a server; `ModelBroken` tells why it could not be."""
    _tune()
    import xllamacpp

    remove_stale_folders()
    folder = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")
    address, key = str(Path(folder) / "engine.sock"), secrets.token_hex(32)
    params = _params(xllamacpp, settings, header, embedding)
    params.special = special  # control tokens are text too: no token is without bytes
    params.hostnames, params.port, params.api_keys = [address], 0, [key]
    try:
        return NativeServer(xllamacpp.Server(params), folder, NativeClient(address, key))
    except RuntimeError:
        cause = _cause(xllamacpp, params)
        shutil.rmtree(folder, ignore_errors=True)
        raise ModelBroken(f"The engine cannot load the model: {cause}") from None
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _tune() -> None:
    """Settings that the library and its threads read from the environment, unless they are set."""
    with contextlib.suppress(AttributeError, OSError):
        setenv = ctypes.CDLL(None).setenv
        setenv(b"GGML_NO_BACKTRACE", b"1", 0)  # it would start a debugger when it dies
        setenv(b"GOMP_SPINCOUNT", b"1000", 0)  # on a busy machine, threads that spin starve


def _params(lib: Any, settings: LlamaCppSettings, header: GgufHeader, embedding: bool) -> Any:
    params = lib.CommonParams()
    params.model.path = settings.path
    on_gpu = _layers(lib, settings, params)
    threads = settings.threads or count_cores()
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.ui = params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = False
    params.cors_origins = ""
    params.verbosity = 0
    params.warmup = False
    params.kv_unified = False
    params.ctx_shift = False
    params.cache_idle_slots = False
    params.fit_params = on_gpu
    context = get_context_size(settings, header)
    if embedding:
        _for_embeddings(lib, params, header, min(context, settings.embed_context))
        return params
    batch = settings.batch or (GPU_BATCH if on_gpu else CPU_BATCH)
    params.n_parallel = settings.slots
    params.n_ctx = context * settings.slots
    params.n_batch, params.n_ubatch = batch, min(batch, MICRO_BATCH)
    _memory(lib, params, settings)
    _adapters(lib, params, settings)
    return params


def _layers(lib: Any, settings: LlamaCppSettings, params: Any) -> bool:
    """Say how much goes to a GPU; is there one in use?"""
    cpu = lib.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_CPU
    present = any(device["type"] != cpu for device in lib.get_device_info())
    wanted = settings.gpu_layers
    params.n_gpu_layers = (-1 if present else 0) if wanted is None else wanted
    return present and wanted != 0


def _memory(lib: Any, params: Any, settings: LlamaCppSettings) -> None:
    """What is remembered of prompts, and in which numbers.

    Attention over 16-bit numbers is done in one of three ways, depending on how many tokens share
    a batch, and they differ in the last digits: a seeded answer may depend on what else is running
    and on what was cached. Over 8-bit numbers there is one way only. It needs half the memory, and
    reads long prompts half as fast.
    """
    if settings.exact:
        params.cache_type_k = params.cache_type_v = lib.ggml_type.GGML_TYPE_Q8_0
        params.flash_attn_type = lib.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    # prompts are found again by their tokens alone, not by the adapters they were read with
    params.cache_ram_mib = 0 if settings.lora else settings.cache


def _adapters(lib: Any, params: Any, settings: LlamaCppSettings) -> None:
    adapters = []
    for path in settings.lora.values():
        adapter = lib.CommonAdapterLoraInfo()
        adapter.path, adapter.scale = path, 0.0
        adapters.append(adapter)
    params.lora_adapters = adapters
    params.lora_init_without_apply = True


def _for_embeddings(lib: Any, params: Any, header: GgufHeader, context: int) -> None:
    params.embedding = True
    params.n_parallel = 1  # texts that share a batch would be cut, and averaged over a part
    params.n_ctx = context
    params.n_batch = params.n_ubatch = context  # a text is averaged over one batch
    params.cache_ram_mib = 0
    params.embd_normalize = 2
    if header.number(f"{header.architecture}.pooling_type") is None:
        params.pooling_type = lib.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN


def find_eos_ids(native: NativeServer) -> frozenset[int]:
    """The tokens that end an answer, as the server itself sees it."""
    answers: list[Any] = []
    asked = {"prompt": [0], "n_predict": 1, "ignore_eos": True, "verbose": True, "stream": False}
    native.server.handle_completions(asked, answers.append)
    settings = answers[0].get("__verbose", {}).get("generation_settings", {})
    return frozenset(int(bias["token"]) for bias in settings.get("logit_bias", ()))


def count_cores() -> int:
    """Physical cores that this process may use."""
    try:
        usable = os.sched_getaffinity(0)
    except AttributeError:
        return os.cpu_count() or 1
    found = set()
    for cpu in usable:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            found.add(siblings.read_text())
        except OSError:
            found.add(str(cpu))
    return max(1, len(found))


def remove_stale_folders() -> None:
    """Take away what processes that were killed have left behind."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        with contextlib.suppress(OSError, ValueError):
            if folder.stat().st_uid == os.getuid() and not Path(f"/proc/{int(owner)}").exists():
                shutil.rmtree(folder, ignore_errors=True)


def _cause(lib: Any, params: Any) -> str:
    """Why a load failed: try it once more and listen to what the library says."""
    params.verbosity = 3
    params.hostnames = [params.hostnames[0].replace("engine.sock", "again.sock")]
    with tempfile.TemporaryFile() as heard:
        with _standard_error(heard.fileno()), contextlib.suppress(RuntimeError):
            lib.Server(params)
        heard.seek(0)
        lines = heard.read(1 << 20).decode(errors="replace").splitlines()
    for line in lines:
        log.info("%s", line)
    telling = [found["text"] for line in lines if (found := _COMPLAINT.match(line))]
    return _plain(telling[0]) if telling else "it does not say why."


# time, level, part of the library, name of a function; then what it has to say
_COMPLAINT = re.compile(r"[\d.]+ E (?:\w+ +\S+: )?(?:\w+: )*(?P<text>.*)")


def _plain(text: str) -> str:
    """What the library says, without paths."""
    return re.sub(r"'[^']*/[^']*'|\S*/\S+", "the file", text)[:300]


@contextlib.contextmanager
def _standard_error(target: int) -> Iterator[None]:
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(target, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
