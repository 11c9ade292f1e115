"""The native server inside this process: its settings, its start and its end.

It listens on a unix socket in a directory that only this user can enter, behind a random key, and
on no port. Its threads are native, so Python's event loop stays free. A second server with the same
weights (mapped from the same file) computes embeddings, because one context cannot do both; it is
started with the first request for embeddings.
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
from types import ModuleType
from typing import Any, TypeAlias

import msgspec

from dragoman.engines.llamacpp.client import NativeClient
from dragoman.engines.llamacpp.gguf import GgufHeader
from dragoman.engines.options import Count, CountOrZero, EngineOptions
from dragoman.errors import ModelBroken
from dragoman.types import Json

log = logging.getLogger("dragoman.llamacpp")

PREFIX = "dragoman-engine-"  # of the directories of sockets
DEFAULT_CONTEXT = 8192  # unless the model was trained for less
DEFAULT_EMBED_CONTEXT = 2048
CPU_BATCH, GPU_BATCH, MICRO_BATCH = 128, 2048, 512


# `xllamacpp` has no type stubs
CommonParams: TypeAlias = Any
ServerHandle: TypeAlias = Any


class LlamaCppSettings(EngineOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to run a model. A setting that is None is determined by the model or the machine."""

    path: str
    slots: Count = 4
    cache_ram: CountOrZero = 512
    lora: dict[str, str] = msgspec.field(default_factory=dict)  # name -> adapter file
    embeddings: bool = True
    embed_context: int = DEFAULT_EMBED_CONTEXT  # tokens of an input to embed; memory grows with it


class NativeServer:
    """A running server, its socket's directory and a client for it."""

    def __init__(self, server: ServerHandle, folder: str, client: NativeClient) -> None:
        self.server: ServerHandle = server
        self.client = client
        self._folder = folder

    def close(self) -> None:
        """Stop the server, which must be idle."""
        self.server = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def leave_running(self) -> None:
        """Leave the server running until the process ends: a busy server cannot be stopped."""
        shutil.rmtree(self._folder, ignore_errors=True)
        _busy_servers.append(self.server)


_busy_servers: list[object] = []


def get_context_size(settings: LlamaCppSettings, header: GgufHeader) -> int:
    trained = header.context_length or DEFAULT_CONTEXT
    return min(settings.context or min(trained, DEFAULT_CONTEXT), trained)


def launch(
    settings: LlamaCppSettings, header: GgufHeader, *, special: bool = True, embedding: bool = False
) -> NativeServer:
    """Start a server, or raise a `ModelBroken` with the cause."""
    _set_environment()
    import xllamacpp

    remove_stale_folders()
    folder = _make_socket_folder()
    address, key = str(Path(folder) / "engine.sock"), secrets.token_hex(32)
    params = _build_params(xllamacpp, settings, header, embedding)
    params.special = special  # report control tokens as text too, so that no token lacks bytes
    params.hostnames, params.port, params.api_keys = [address], 0, [key]
    try:
        return NativeServer(xllamacpp.Server(params), folder, NativeClient(address, key))
    except RuntimeError:
        cause = _find_load_error(xllamacpp, params)
        shutil.rmtree(folder, ignore_errors=True)
        raise ModelBroken(f"The engine cannot load the model: {cause}") from None
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _set_environment() -> None:
    """Set variables that the library and its threads read, unless they are set already."""
    with contextlib.suppress(AttributeError, OSError):
        setenv = ctypes.CDLL(None).setenv
        setenv(b"GGML_NO_BACKTRACE", b"1", 0)  # or it starts a debugger when it crashes
        setenv(b"GOMP_SPINCOUNT", b"1000", 0)  # spinning threads starve others on a busy machine


def _build_params(
    lib: ModuleType, settings: LlamaCppSettings, header: GgufHeader, embedding: bool
) -> CommonParams:
    params = lib.CommonParams()
    params.model.path = settings.path
    on_gpu = _set_gpu_layers(lib, settings, params)
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
        _set_embedding(lib, params, header, min(context, settings.embed_context))
        return params
    batch = settings.batch or (GPU_BATCH if on_gpu else CPU_BATCH)
    params.n_parallel = settings.slots
    params.n_ctx = context * settings.slots
    params.n_batch, params.n_ubatch = batch, min(batch, MICRO_BATCH)
    _set_cache(lib, params, settings)
    _set_adapters(lib, params, settings)
    return params


def _set_gpu_layers(lib: ModuleType, settings: LlamaCppSettings, params: CommonParams) -> bool:
    """Set how many layers go to a GPU; return whether a GPU is used."""
    cpu = lib.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_CPU
    has_gpu = any(device["type"] != cpu for device in lib.get_device_info())
    layers = settings.gpu_layers
    params.n_gpu_layers = (-1 if has_gpu else 0) if layers in (None, -1) else layers
    return has_gpu and layers != 0


def _set_cache(lib: ModuleType, params: CommonParams, settings: LlamaCppSettings) -> None:
    """Set the type of the KV cache and the size of the prompt cache.

    Attention over a 16-bit cache uses one of three kernels, depending on how many tokens share a
    batch, and their results differ in the last digits: a seeded answer may depend on what else is
    running and on what was cached. For an 8-bit cache there is only one kernel. It needs half the
    memory, and processes long prompts half as fast.
    """
    if settings.exact:
        params.cache_type_k = params.cache_type_v = lib.ggml_type.GGML_TYPE_Q8_0
        params.flash_attn_type = lib.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    # the server looks prompts up by their tokens alone, not by the adapters they were run with
    params.cache_ram_mib = 0 if settings.lora else settings.cache_ram


def _set_adapters(lib: ModuleType, params: CommonParams, settings: LlamaCppSettings) -> None:
    adapters = []
    for path in settings.lora.values():
        adapter = lib.CommonAdapterLoraInfo()
        adapter.path, adapter.scale = path, 0.0
        adapters.append(adapter)
    params.lora_adapters = adapters
    params.lora_init_without_apply = True


def _set_embedding(lib: ModuleType, params: CommonParams, header: GgufHeader, context: int) -> None:
    params.embedding = True
    params.n_parallel = 1  # inputs that share a batch would be cut, and only a part averaged
    params.n_ctx = context
    params.n_batch = params.n_ubatch = context  # an input is averaged over one batch
    params.cache_ram_mib = 0
    params.embd_normalize = 2
    if header.get_number(f"{header.architecture}.pooling_type") is None:
        params.pooling_type = lib.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN


def find_eos_ids(native: NativeServer) -> frozenset[int]:
    """Return the tokens that end an answer, as the server reports them."""
    answers: list[Json] = []
    request = {"prompt": [0], "n_predict": 1, "ignore_eos": True, "verbose": True, "stream": False}
    native.server.handle_completions(request, answers.append)
    settings = answers[0].get("__verbose", {}).get("generation_settings", {})
    return frozenset(int(bias["token"]) for bias in settings.get("logit_bias", ()))


def count_cores() -> int:
    """Count the physical cores that this process may use."""
    try:
        usable = os.sched_getaffinity(0)
    except AttributeError:
        return os.cpu_count() or 1
    cores = set()
    for cpu in usable:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))


def _make_socket_folder() -> str:
    """Create a directory whose path is short enough for a unix socket inside it."""
    for parent in _list_socket_parents():
        with contextlib.suppress(OSError):
            return tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent)
    raise ModelBroken(
        "The engine needs a directory for its socket: set TMPDIR to a writable directory "
        f"whose path has at most {_MAX_SOCKET_PARENT} characters."
    )


def _list_socket_parents() -> list[str]:
    """Return the directories for sockets: the temporary one, or /tmp where its path is too long."""
    return [
        parent
        for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp"))  # noqa: S108
        if len(os.fsencode(parent)) <= _MAX_SOCKET_PARENT
    ]


# macOS allows 103 bytes for the path of a socket, Linux 107
_MAX_SOCKET_PARENT = 103 - len(f"/{PREFIX}4194304-12345678/engine.sock")


def remove_stale_folders() -> None:
    """Remove the directories that killed processes have left behind."""
    for parent in _list_socket_parents():
        for folder in Path(parent).glob(f"{PREFIX}*"):
            owner = folder.name.removeprefix(PREFIX).partition("-")[0]
            with contextlib.suppress(OSError, ValueError):
                if folder.stat().st_uid == os.getuid() and not Path(f"/proc/{int(owner)}").exists():
                    shutil.rmtree(folder, ignore_errors=True)


def _find_load_error(lib: ModuleType, params: CommonParams) -> str:
    """Return why loading failed: load again and read the library's log."""
    params.verbosity = 3
    params.hostnames = [params.hostnames[0].replace("engine.sock", "again.sock")]
    with tempfile.TemporaryFile() as output:
        with _redirect_stderr(output.fileno()), contextlib.suppress(RuntimeError):
            lib.Server(params)
        output.seek(0)
        lines = output.read(1 << 20).decode(errors="replace").splitlines()
    for line in lines:
        log.info("%s", line)
    errors = [match["text"] for line in lines if (match := _ERROR_LINE.match(line))]
    return _remove_paths(errors[0]) if errors else "the library gives no reason."


# time, level, part of the library, name of a function, and then the message
_ERROR_LINE = re.compile(r"[\d.]+ E (?:\w+ +\S+: )?(?:\w+: )*(?P<text>.*)")


def _remove_paths(text: str) -> str:
    return re.sub(r"'[^']*/[^']*'|\S*/\S+", "the file", text)[:300]


@contextlib.contextmanager
def _redirect_stderr(target: int) -> Iterator[None]:
    sys.stderr.flush()
    original = os.dup(2)
    os.dup2(target, 2)
    try:
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)
