"""The process that decodes: `python -m dragoman.media.worker MEMORY SECONDS`.

It reads tasks from the socket to its parent and writes a result for each, one at a time, within the
limits of `processes.worker_loop`. The libraries are imported with the first task that needs them.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from typing import Literal

import msgspec
from msgspec import Struct

from dragoman.media.errors import MediaError, Problem
from dragoman.processes.worker_loop import apply_process_limits, serve_tasks, uses_too_much_memory
from dragoman.types.media import MediaItem

log = logging.getLogger("dragoman.media")

TOO_COSTLY = "takes too much time or memory to decode."


class DecodeTask(Struct, frozen=True, kw_only=True):
    """A content to decode; it was checked as far as its header tells."""

    kind: Literal["image", "audio", "pdf"]
    format: str
    data: bytes
    pixels: int = 0  # the limits of its kind
    side: int = 0
    seconds: float = 0.0
    characters: int = 0


class DecodeResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a content: an item, a text or an error."""

    item: MediaItem | None = None
    text: str | None = None
    problem: Problem = "invalid"
    message: str = ""  # of an error
    needs_restart: bool = False  # the process must not decode anything else


task_decoder = msgspec.msgpack.Decoder(DecodeTask)
result_decoder = msgspec.msgpack.Decoder(DecodeResult)
encoder = msgspec.msgpack.Encoder()


def run_task(task: DecodeTask) -> DecodeResult:
    """Decode a content; every exception becomes a result."""
    try:
        return decode(task)
    except MediaError as error:
        return DecodeResult(problem=error.problem, message=error.message)
    except (MemoryError, RecursionError):
        return DecodeResult(message=TOO_COSTLY, needs_restart=True)
    except BaseException as error:
        log.error("a %s could not be decoded: %s", task.format, type(error).__name__)
        return DecodeResult(message="cannot be decoded.", needs_restart=True)


def decode(task: DecodeTask) -> DecodeResult:
    if task.kind == "pdf":
        from dragoman.media.decode_pdf import extract_text

        return DecodeResult(text=extract_text(task.data, task.characters))
    if task.kind == "audio":
        from dragoman.media.decode_audio import decode_audio

        wav, rate, samples = decode_audio(task.data, task.format, task.seconds)
        digest = hashlib.sha256(wav).hexdigest()
        return DecodeResult(
            item=MediaItem(kind="audio", data=wav, digest=digest, sample_rate=rate, samples=samples)
        )
    from dragoman.media.decode_image import decode_image

    png, width, height = decode_image(task.data, task.format, task.pixels, task.side)
    digest = hashlib.sha256(png).hexdigest()
    item = MediaItem(kind="image", data=png, digest=digest, width=width, height=height)
    return DecodeResult(item=item)


def main() -> None:
    memory, seconds = int(sys.argv[1]), float(sys.argv[2])
    apply_process_limits(memory)

    def handle(data: bytes) -> bytes:
        result = run_task(task_decoder.decode(data))
        if uses_too_much_memory(memory):
            result = msgspec.structs.replace(result, needs_restart=True)
        return encoder.encode(result)

    serve_tasks(handle, seconds)


if __name__ == "__main__":
    main()
