"""Downloads models from Hugging Face, through `huggingface_hub`.

A download that broke off continues where it was (`resumable_hub.py`). The library reports its
progress to an object that is like a bar of `tqdm`; an error raised there ends the download.
"""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from dragoman.engines.llamacpp.media.projector import choose_projector
from dragoman.errors import BadRequest, DragomanError, NotFound, Unavailable
from dragoman.models.disk_errors import convert_disk_error
from dragoman.models.downloads.pip import DownloadListener, ReportProgress
from dragoman.models.downloads.resumable_hub import ResumableHub

log = logging.getLogger("dragoman.pull")

# the files of a repository that contain its tokenizer, its template and its defaults
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "config.json",
)
PREFERRED_QUANTIZATIONS = ("Q4_K_M", "Q8_0")
TIMEOUT = 20.0  # seconds until the hub must answer
HUB_NAME = re.compile(
    r"(?:hf:)?(?P<repo>[\w.\-]+/[\w.\-]+)(?:@(?P<revision>[\w.\-/]+?))?(?:/(?P<file>[^@]+\.gguf))?"
    r"(?::(?P<tag>[\w.\-]+))?",
    re.IGNORECASE,
)
OLLAMA_NAME = re.compile(
    r"(?:https?://)?(?:hf\.co|huggingface\.co)/(?P<repo>[\w.\-]+/[\w.\-]+)(?::(?P<tag>[\w.\-]+))?"
    r"(?:/(?:resolve|blob|tree)/(?P<revision>[\w.\-]+)(?:/(?P<file>[^@?]+\.gguf))?)?/?(?:\?.*)?",
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


class TokenizerHub(Hub, Protocol):
    """The functions that are used to find a tokenizer."""

    def snapshot_download(
        self,
        repo: str,
        *,
        revision: str | None = None,
        allow_patterns: list[str],
        local_files_only: bool,
    ) -> str: ...


def translate_hub_name(name: str) -> str:
    """Return `hf.co/owner/repo:tag`, as Ollama writes it, as `pull_from_hub` takes it.

    The address of a page or a file of Hugging Face is translated, too.
    """
    match = OLLAMA_NAME.fullmatch(name.strip())
    if match is None:
        return name
    tag = "" if (match["tag"] or "").lower() in ("", "latest") else f":{match['tag']}"
    revision = "" if match["revision"] in (None, "main") else f"@{match['revision']}"
    file = f"/{match['file']}" if match["file"] else ""
    return f"hf:{match['repo']}{revision}{file}{tag}"


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
        return directory / choose_file(files, match["tag"])
    except DragomanError:  # none, or several
        return None


def _get_hub_directory(repo: str, models: Path) -> Path:
    return models / repo.replace("/", "--")


def pull_from_hub(
    name: str, models: Path, hub: Hub | None = None, listener: DownloadListener | None = None
) -> Path:
    """Download a GGUF file from Hugging Face into the models directory."""
    match = HUB_NAME.fullmatch(name)
    if match is None:
        raise BadRequest(
            "Write it as `hf:owner/repo`, `hf:owner/repo/file.gguf` or with `@revision`."
        )
    hub = hub or open_hub()
    repo, revision, file = match["repo"], match["revision"], match["file"]
    if ".." in (file or "").split("/") or ".." in repo.split("/"):
        raise BadRequest("The name of a file must not contain `..`.")
    directory = _get_hub_directory(repo, models)
    try:
        # Also where the file is known: this fails at once without a network, a download retries.
        more: dict[str, Any] = {} if listener is None else {"files_metadata": True}
        info = hub.model_info(repo, revision=revision, timeout=TIMEOUT, **more)
        siblings = info.siblings or ()
        if file is None:
            file = choose_file([sibling.rfilename for sibling in siblings], match["tag"])
        for part in (*_list_parts(file), *_list_projectors(file, siblings)):
            bar: dict[str, Any] = {}
            if listener is not None:
                listener.start_file(*_find_digest(siblings, part))
                bar = {"tqdm_class": make_progress_bar(listener.report)}
            path = hub.hf_hub_download(
                repo, part, revision=revision, local_dir=str(directory), **bar
            )
            file = file if part != file else str(path)
    except DragomanError:
        raise
    except Exception as error:  # the library raises many types of errors
        log.debug("Hugging Face download failed: %r", error)
        raise _explain_failure(error, repo) from None
    return Path(file)


def open_hub() -> TokenizerHub:
    import huggingface_hub

    if not log.isEnabledFor(logging.DEBUG):  # its errors are reported here
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module="huggingface_hub")
    return cast("TokenizerHub", ResumableHub(huggingface_hub))


def fetch_tokenizer_files(name: str, hub: TokenizerHub | None = None) -> Path:
    """Return a directory with the tokenizer of a model on Hugging Face.

    It is in the cache that other programs use, too, or is downloaded.
    """
    match = HUB_NAME.fullmatch(name.strip())
    if match is None:
        raise BadRequest("Write it as `owner/repo`, or with `@revision`.")
    if hub is None:
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()  # the files are small
        hub = open_hub()
    repo, revision, patterns = match["repo"], match["revision"], list(TOKENIZER_FILES)
    directory = None
    with contextlib.suppress(Exception):  # it is not in the cache
        directory = hub.snapshot_download(
            repo, revision=revision, allow_patterns=patterns, local_files_only=True
        )
    try:
        if directory is None or not (Path(directory) / TOKENIZER_FILES[0]).exists():
            hub.model_info(repo, revision=revision, timeout=TIMEOUT)  # fails without a network
            directory = hub.snapshot_download(
                repo, revision=revision, allow_patterns=patterns, local_files_only=False
            )
    except Exception as error:  # the library raises many types of errors
        log.debug("Hugging Face download failed: %r", error)
        raise _explain_failure(error, repo) from None
    if not (Path(directory) / TOKENIZER_FILES[0]).exists():
        raise NotFound(f"`{repo}` on Hugging Face has no tokenizer.json.")
    return Path(directory)


def make_progress_bar(report: ReportProgress) -> type:
    """Make a class whose objects the library uses like a bar of `tqdm`."""

    class HubProgress:
        """Reports the part of a file that has arrived."""

        def __init__(self, *_: Any, total: int | None = None, initial: int = 0, **__: Any) -> None:
            self.total, self.n = total, initial

        def update(self, count: float | None = 1) -> None:
            self.n += int(count or 0)
            report("downloading", min(1.0, self.n / self.total) if self.total else 0.0)

        def __enter__(self) -> HubProgress:
            return self

        def __exit__(self, *_: object) -> None: ...

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None  # `close`, `refresh` and other methods of a bar

    return HubProgress


def _find_digest(siblings: Sequence[HubFile], name: str) -> tuple[str, int]:
    """Return digest and size of a file, as far as the hub knows them."""
    for sibling in siblings:
        if sibling.rfilename == name:
            lfs = getattr(sibling, "lfs", None)
            digest, size = getattr(lfs, "sha256", None), getattr(sibling, "size", None)
            return str(digest or ""), int(size or 0)
    return "", 0


def choose_file(files: Sequence[str], tag: str | None = None) -> str:
    """Choose the file of a repository when none is named; `tag` is a quantization."""
    models = [
        file
        for file in sorted(files)
        if file.lower().endswith(".gguf") and "mmproj" not in file.lower() and _is_first_part(file)
    ]
    if tag:
        models = [file for file in models if tag.lower() in file.lower()]
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


def _list_projectors(file: str, siblings: Sequence[HubFile]) -> list[str]:
    """List the file with which the model reads pictures or sound, if the repository has one."""
    folder, _, name = file.rpartition("/")
    prefix = f"{folder}/" if folder else ""
    names = [sibling.rfilename for sibling in siblings if sibling.rfilename.startswith(prefix)]
    beside = [name.removeprefix(prefix) for name in names]
    projector = choose_projector(name, [other for other in beside if "/" not in other])
    return [] if projector is None else [prefix + projector]


def _explain_failure(error: Exception, repo: str) -> DragomanError:
    """Explain an error of the library, by the first in its chain that is known."""
    for cause in _list_causes(error):
        if (disk_error := convert_disk_error(cause)) is not None:
            return disk_error
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
