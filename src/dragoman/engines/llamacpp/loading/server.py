"""The native server inside this process: its start and its end.

It listens on a unix socket in a directory that only this user can enter, behind a random key, and
on no port. Its threads are native, so Python's event loop stays free. A second server with the same
weights (mapped from the same file) computes embeddings, because one context cannot do both; it is
started with the first request for embeddings.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from dragoman.engines.llamacpp.client import NativeClient
from dragoman.engines.llamacpp.loading.native_params import (
    CommonParams,
    LoadPlan,
    build_embedding_params,
    build_params,
)
from dragoman.engines.llamacpp.saved_states import get_save_path
from dragoman.errors import ModelBroken
from dragoman.types import Json

log = logging.getLogger("dragoman.llamacpp")

PREFIX = "dragoman-engine-"  # of the directories of sockets
LOCK_FILE = "lock"  # in each of them; locked while its process lives
MAX_UNLOCKED_SECONDS = 60.0  # between the creation of a directory and its lock
LOG_ATTEMPTS, LOG_INTERVAL = 40, 0.05  # to find an error in the library's log, in seconds

ServerHandle: TypeAlias = Any  # `xllamacpp` has no type stubs


class NativeServer:
    """A running server, its socket's directory and a client for it."""

    def __init__(self, server: ServerHandle, folder: SocketFolder, client: NativeClient) -> None:
        self.server: ServerHandle = server
        self.client = client
        self.folder = folder.path
        self._folder = folder

    def close(self) -> None:
        """Stop the server, which must be idle."""
        self.server = None
        self._folder.remove()

    def leave_running(self) -> None:
        """Leave the server running until the process ends: a busy server cannot be stopped."""
        self._folder.remove()
        _busy_servers.append(self.server)


_busy_servers: list[object] = []


def launch(plan: LoadPlan, *, special: bool = True, embedding: bool = False) -> NativeServer:
    """Start a server, or raise a `ModelBroken` with the cause."""
    set_environment()
    import xllamacpp

    remove_stale_folders()
    folder = SocketFolder()
    address, key = str(Path(folder.path) / "engine.sock"), secrets.token_hex(32)
    build = build_embedding_params if embedding else build_params
    params = build(xllamacpp, plan)
    params.special = special  # report control tokens as text too, so that no token lacks bytes
    params.hostnames, params.port, params.api_keys = [address], 0, [key]
    params.slot_save_path = get_save_path(folder.path)
    try:
        return NativeServer(xllamacpp.Server(params), folder, NativeClient(address, key))
    except RuntimeError:
        cause = _find_load_error(xllamacpp, params)
        folder.remove()
        raise ModelBroken(f"The engine cannot load the model: {cause}") from None
    except BaseException:
        folder.remove()
        raise


def set_environment() -> None:
    """Set variables that the library and its threads read, unless they are set already."""
    with contextlib.suppress(AttributeError, OSError):
        setenv = ctypes.CDLL(None).setenv
        setenv(b"GGML_NO_BACKTRACE", b"1", 0)  # or it starts a debugger when it crashes
        setenv(b"GOMP_SPINCOUNT", b"1000", 0)  # spinning threads starve others on a busy machine


def find_eos_ids(native: NativeServer) -> frozenset[int]:
    """Return the tokens that end an answer, as the server reports them."""
    answers: list[Json] = []
    # a text, because a server with a projector takes no ids here
    request = {"prompt": "a", "n_predict": 1, "ignore_eos": True, "verbose": True, "stream": False}
    native.server.handle_completions(request, answers.append)
    settings = answers[0].get("__verbose", {}).get("generation_settings", {})
    return frozenset(int(bias["token"]) for bias in settings.get("logit_bias", ()))


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


class SocketFolder:
    """The directory of a socket, locked while this process lives.

    A process id would not do: servers in several containers may share a temporary directory, and
    each sees its own processes only.
    """

    def __init__(self) -> None:
        self.path = _make_socket_folder()
        self._lock: BufferedIOBase | None = None
        with contextlib.suppress(OSError):  # a file system without locks, or a full one
            self._lock = _open_lock(Path(self.path))

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()


def _open_lock(folder: Path, mode: str = "wb") -> BufferedIOBase:
    """Lock a directory; `OSError` if another process has locked it."""
    file: BufferedIOBase = (folder / LOCK_FILE).open(mode)  # type: ignore[assignment]
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        file.close()
        raise
    return file


def remove_stale_folders() -> None:
    """Remove the directories that killed processes have left behind."""
    for parent in _list_socket_parents():
        for folder in Path(parent).glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                if folder.stat().st_uid == os.getuid():
                    _remove_if_stale(folder)


def _remove_if_stale(folder: Path) -> None:
    """Remove a directory that no process has locked, or is about to; `OSError` for others."""
    try:
        lock = _open_lock(folder, "rb")
    except FileNotFoundError:
        if time.time() - folder.stat().st_mtime > MAX_UNLOCKED_SECONDS:
            folder.rmdir()  # fails if the directory is not empty
        return
    with lock:
        shutil.rmtree(folder, ignore_errors=True)


def _find_load_error(lib: ModuleType, params: CommonParams) -> str:
    """Return why loading failed: load again and read the library's log."""
    params.verbosity = 3
    params.hostnames = [params.hostnames[0].replace("engine.sock", "again.sock")]
    with tempfile.TemporaryFile() as output, _redirect_stderr(output.fileno()):
        with contextlib.suppress(RuntimeError):
            lib.Server(params)
        lines, errors = _read_log(output.fileno())
        for _ in range(LOG_ATTEMPTS):
            if errors:
                break
            time.sleep(LOG_INTERVAL)  # a thread of the library writes the log
            lines, errors = _read_log(output.fileno())
    for line in lines:
        log.info("%s", line)
    return _remove_paths(errors[0]) if errors else "the library gives no reason."


def _read_log(descriptor: int) -> tuple[list[str], list[str]]:
    """Return the lines of the log so far, and its errors."""
    lines = os.pread(descriptor, 1 << 20, 0).decode(errors="replace").splitlines()
    return lines, [match["text"] for line in lines if (match := _ERROR_LINE.match(line))]


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
