"""What passes between an engine's process and ours.

A frame is four bytes of length and a msgpack message, in either direction; nothing is pickled. A
frame that says it is longer than any we would send is an error, before anything is read of it. All
that moved in one turn of the child's loop, however many jobs and choices, is one `Turn`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from dragoman.errors import SerializedError, TooLarge
from dragoman.types import Adapter, Capabilities, Job, Step

LIMIT = 256 << 20  # bytes in a frame
HEAD = 4


class LoadEngine(Struct, frozen=True, array_like=True, tag="hello"):
    """Which engine to make: `module:function`, and what to call it with."""

    factory: str
    settings: dict[str, Any]


class StartJob(Struct, frozen=True, array_like=True, tag="start"):
    number: int
    job: Job


class AdmitJob(Struct, frozen=True, array_like=True, tag="admit"):
    number: int
    job: Job


class EmbedInputs(Struct, frozen=True, array_like=True, tag="embed"):
    number: int
    inputs: list[list[int] | str]
    adapters: list[Adapter] = []


class TokenizeText(Struct, frozen=True, array_like=True, tag="tokenize"):
    number: int
    text: str
    special: bool


class CancelCall(Struct, frozen=True, array_like=True, tag="cancel"):
    """Close a job or a call."""

    number: int


class Ping(Struct, frozen=True, array_like=True, tag="ping"):
    pass


class Shutdown(Struct, frozen=True, array_like=True, tag="stop"):
    pass


class EngineReady(Struct, frozen=True, array_like=True, tag="ready"):
    capabilities: Capabilities
    pid: int


class LoadFailed(Struct, frozen=True, array_like=True, tag="broken"):
    """The engine could not be made."""

    note: SerializedError


class StepBatch(Struct, frozen=True, array_like=True, tag="turn"):
    """What moved, and what ended, since the last one."""

    steps: list[tuple[int, list[Step]]]
    ended: list[tuple[int, SerializedError | None]] = []


class CallResult(Struct, frozen=True, array_like=True, tag="result"):
    """The answer to a question."""

    number: int
    value: Any = None
    note: SerializedError | None = None


class Pong(Struct, frozen=True, array_like=True, tag="pong"):
    pass


Call: TypeAlias = AdmitJob | EmbedInputs | TokenizeText
ToChild: TypeAlias = LoadEngine | StartJob | Call | CancelCall | Ping | Shutdown
ToParent: TypeAlias = EngineReady | LoadFailed | StepBatch | CallResult | Pong

_encoder = msgspec.msgpack.Encoder()
child_decoder: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)
parent_decoder: msgspec.msgpack.Decoder[ToParent] = msgspec.msgpack.Decoder(ToParent)


class BadFrame(Exception):
    """The other side sent something that is no frame of ours."""


def encode_message(message: ToChild | ToParent) -> bytes:
    body = _encoder.encode(message)
    if len(body) > LIMIT:
        raise TooLarge("The request is too large for the engine.")
    return len(body).to_bytes(HEAD, "big") + body


class Frames:
    """Cuts what was read into the bodies of frames."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        buffer = self._buffer
        buffer += data
        bodies, at = [], 0
        while len(buffer) - at >= HEAD:
            size = int.from_bytes(buffer[at : at + HEAD], "big")
            if size > self._limit:
                raise BadFrame(f"a frame of {size} bytes")
            if len(buffer) - at - HEAD < size:
                break
            at += HEAD
            bodies.append(bytes(buffer[at : at + size]))
            at += size
        if at:
            del buffer[:at]
        return bodies
