"""Downloads models from Hugging Face, through `huggingface_hub`."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, cast

from dragoman.errors import BadRequest, DragomanError, NotFound, Unavailable

log = logging.getLogger("dragoman.pull")

PREFERRED_QUANTIZATIONS = ("Q4_K_M", "Q8_0")
TIMEOUT = 20.0  # seconds until the hub must answer
HUB_NAME = re.compile(
    r"(?:hf:)?(?P<repo>[\w.\-]+/[\w.\-]+)(?:@(?P<revision>[\w.\-/]+?))?(?:/(?P<file>[^@]+\.gguf))?",
    re.IGNORECASE,
)
# classes of errors of the library, by name, and what they mean
FAILURES = {
    "GatedRepoError": "{repo} is only for users who accepted its terms: set HF_TOKEN.",
    "RepositoryNotFoundError": "Hugging Face has no model {repo}; a private one needs HF_TOKEN.",
    "RevisionNotFoundError": "{repo} does not have this revision.",
    "RemoteEntryNotFoundError": "{repo} does not have this file.",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set: {repo} cannot be downloaded.",
}


class HubFile(Protocol):
    """A file in a repository."""

    @property
    def rfilename(self) -> str: ...


class RepoInfo(Protocol):
    """What the hub knows of a repository."""

    @property
    def siblings(self) -> Sequence[HubFile] | None: ...


class Hub(Protocol):
    """The functions of `huggingface_hub` that are used."""

    def model_info(self, repo: str, *, revision: str | None, timeout: float) -> RepoInfo: ...

    def hf_hub_download(
        self, repo: str, filename: str, *, revision: str | None = None, local_dir: str
    ) -> str: ...


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
        if not log.isEnabledFor(logging.DEBUG):  # its errors are reported here
            logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    repo, revision, file = match["repo"], match["revision"], match["file"]
    if ".." in (file or "").split("/") or ".." in repo.split("/"):
        raise BadRequest("The name of a file must not contain `..`.")
    directory = _get_hub_directory(repo, models)
    try:
        # Also where the file is known: this fails at once without a network, a download retries.
        siblings = hub.model_info(repo, revision=revision, timeout=TIMEOUT).siblings or ()
        if file is None:
            file = choose_file([sibling.rfilename for sibling in siblings])
        for part in _list_parts(file):
            path = hub.hf_hub_download(repo, part, revision=revision, local_dir=str(directory))
            file = file if part != file else str(path)
    except DragomanError:
        raise
    except Exception as error:  # the library raises many types of errors
        log.debug("Hugging Face download failed: %r", error)
        raise _explain_failure(error, repo) from None
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
    raise BadRequest(
        f"There are several models in this repository: {', '.join(models)}. "
        "Add one to the name, as in `hf:owner/repo/file.gguf`."
    )


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


def _explain_failure(error: Exception, repo: str) -> DragomanError:
    """Explain an error of the library, by the first in its chain that is known."""
    for cause in _list_causes(error):
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return Unavailable("There is no space left on the disk.")
        if isinstance(cause, PermissionError) or getattr(cause, "errno", None) == errno.EROFS:
            return Unavailable("The models directory is not writable.")
        if type(cause).__name__ in FAILURES:
            return NotFound(FAILURES[type(cause).__name__].format(repo=f"`{repo}`"))
    return Unavailable(
        f"`{repo}` could not be downloaded: Hugging Face cannot be reached. Check the network and "
        "the proxy settings, or serve a file that you have."
    )


def _list_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
