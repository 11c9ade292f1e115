"""Downloads files from Hugging Face so that the next download continues one that broke off.

`huggingface_hub` repeats requests within one call, but drops what has arrived when the call fails
or is interrupted. So a file is first downloaded here, to a name that contains the digest of its
content, and moved to its place when it is complete. Then the library's own function finds it there,
compares its digest with that of the hub, and downloads it again only if they differ.

Only files whose digest the hub knows (all large ones) are downloaded here, and none that the cache
of the library contains.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import urlsplit

log = logging.getLogger("dragoman.pull")

PARTIAL_FILES = Path(".cache", "huggingface", "download")  # where the library has its own
SHA256 = re.compile("[0-9a-f]{64}")
TIMEOUT = 20.0  # seconds until the hub must answer


class HubMetadata(Protocol):
    """What the hub knows of a file, as far as it is used."""

    location: str
    size: int


class ResumableHub:
    """`huggingface_hub`, with downloads that continue."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.model_info = library.model_info
        self.snapshot_download = library.snapshot_download

    def hf_hub_download(
        self,
        repo: str,
        filename: str,
        *,
        revision: str | None = None,
        local_dir: str,
        tqdm_class: type | None = None,
    ) -> str:
        """Download a file into a directory and return its path."""
        if not (Path(local_dir) / filename).exists():
            self._download(repo, filename, revision, Path(local_dir), tqdm_class)
        path: str = self._library.hf_hub_download(
            repo, filename, revision=revision, local_dir=local_dir, tqdm_class=tqdm_class
        )
        return path

    def _download(
        self, repo: str, filename: str, revision: str | None, directory: Path, bar: type | None
    ) -> None:
        """Download a file, or the rest of it, if the hub knows its digest."""
        from huggingface_hub.constants import MAX_HTTP_DOWNLOAD_SIZE
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

        url = self._library.hf_hub_url(repo, filename, revision=revision)
        try:
            found = self._library.get_hf_file_metadata(url, timeout=TIMEOUT)
        except Exception as error:  # the library raises many types of errors
            log.debug("no metadata of %s: %r", url, error)
            return  # the library tries again, or raises what is wrong
        is_known = SHA256.fullmatch(found.etag or "") and found.size is not None
        if not is_known or found.size > MAX_HTTP_DOWNLOAD_SIZE:
            return  # the library downloads it
        cached = self._library.try_to_load_from_cache(repo, filename, revision=found.commit_hash)
        if isinstance(cached, str):
            return  # the library copies it
        partial = directory / PARTIAL_FILES / f"{filename}.{found.etag}.partial"
        partial.parent.mkdir(parents=True, exist_ok=True)
        target = directory / filename
        with WeakFileLock(partial.with_suffix(".lock")):
            if target.exists():  # another process has downloaded it
                return
            if partial.exists() and partial.stat().st_size > found.size:
                partial.unlink()  # the hub sent more than was missing
            with partial.open("ab") as file:
                _download_rest(url, found, file, filename, bar)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(partial, target)


def _download_rest(
    url: str, found: HubMetadata, file: BinaryIO, filename: str, bar: type | None
) -> None:
    """Append what is missing to a file whose metadata were `found` at the hub."""
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    headers = build_hf_headers()
    if urlsplit(found.location).netloc != urlsplit(url).netloc:
        headers.pop("authorization", None)  # the address of a store is signed
    http_get(
        found.location,
        file,
        resume_size=file.tell(),
        headers=headers,
        expected_size=found.size,
        displayed_filename=filename,
        tqdm_class=bar,
    )
