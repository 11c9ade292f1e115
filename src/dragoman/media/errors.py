"""Errors of media, with the codes of OpenAI's API."""

from __future__ import annotations

from typing import Literal, TypeAlias

from dragoman.errors import InvalidMedia, Unsupported

Problem: TypeAlias = Literal[
    "invalid",
    "format",
    "base64",
    "url",
    "too_large",
    "too_small",
    "parse",
    "file_too_large",
    "media_type",
    "empty",
    "download",
    "not_found",
]
# the code for each kind of media: `image`, `audio` or `file`
_CODES: dict[str, str] = {
    "invalid": "invalid_{}",
    "format": "invalid_{}_format",
    "base64": "invalid_base64_{}",
    "url": "invalid_{}_url",
    "too_large": "{}_too_large",
    "too_small": "{}_too_small",
    "parse": "{}_parse_error",
    "file_too_large": "{}_file_too_large",
    "media_type": "unsupported_{}_media_type",
    "empty": "empty_{}_file",
    "download": "failed_to_download_{}",
    "not_found": "{}_file_not_found",
}
NOUNS = {"image": "picture", "audio": "sound", "file": "file"}


class MediaError(Exception):
    """A problem of one item. The message begins with what the item is or has, without a subject."""

    def __init__(self, problem: Problem, message: str) -> None:
        super().__init__(message)
        self.problem: Problem = problem
        self.message = message


class UnreadableMedia(Exception):
    """A kind of media that cannot be read here; the message is a sentence for the client."""


def make_code(problem: str, kind: str) -> str:
    """Return the code of a problem: `make_code("base64", "image")` is `invalid_base64_image`."""
    return _CODES[problem].format(kind).replace("file_file", "file")


def make_media_error(error: MediaError, kind: str, param: str) -> InvalidMedia:
    return InvalidMedia(
        f"The {NOUNS[kind]} in `{param}` {error.message}",
        param=param,
        code=make_code(error.problem, kind),
    )


def make_unsupported_error(error: UnreadableMedia, param: str) -> Unsupported:
    return Unsupported(str(error), param=param)
