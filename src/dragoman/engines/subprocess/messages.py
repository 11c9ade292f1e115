"""The messages between an engine's process and ours, as msgpack; `processes.framing` frames them.

Each call of an engine's method has a number, which its answers carry. Steps are batched: everything
that the jobs yielded in one iteration of the child's event loop is one `StepBatch`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import Struct

from dragoman.errors import SerializedError, TooLarge
from dragoman.types import Adapter, Capabilities, Job, MediaItem, Step
from dragoman.types.text_pair import TextPair

MAX_MESSAGE_BYTES = 256 << 20


class LoadEngine(Struct, frozen=True, array_like=True, tag="load"):
    """Create the engine: the first message to a child. `factory` is `module:function`."""

    factory: str
    settings: dict[str, object]


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


class ScorePairs(Struct, frozen=True, array_like=True, tag="score"):
    number: int
    pairs: list[TextPair]


class TokenizeText(Struct, frozen=True, array_like=True, tag="tokenize"):
    number: int
    text: str
    special: bool


class CountPrompt(Struct, frozen=True, array_like=True, tag="count"):
    """Count the tokens of a prompt with media; the result is a `PromptCount`."""

    number: int
    prompt: list[int]
    media: tuple[MediaItem, ...]
    cache_scope: str = ""


class ProbeEngine(Struct, frozen=True, array_like=True, tag="probe"):
    """Call the engine's `probe`; the result is how long a step takes, in seconds."""

    number: int


class LoadAdapter(Struct, frozen=True, array_like=True, tag="load_adapter"):
    """Load a LoRA adapter while the engine runs."""

    number: int
    name: str
    path: str


class UnloadAdapter(Struct, frozen=True, array_like=True, tag="unload_adapter"):
    number: int
    name: str


class SleepEngine(Struct, frozen=True, array_like=True, tag="sleep"):
    """Free the memory of the device until `WakeEngine`."""

    number: int


class WakeEngine(Struct, frozen=True, array_like=True, tag="wake"):
    number: int


class CancelCall(Struct, frozen=True, array_like=True, tag="cancel"):
    """Cancel a job or a call."""

    number: int


class Ping(Struct, frozen=True, array_like=True, tag="ping"):
    pass


class Shutdown(Struct, frozen=True, array_like=True, tag="shutdown"):
    pass


class EngineReady(Struct, frozen=True, array_like=True, tag="ready"):
    capabilities: Capabilities
    has_probe: bool = False


class LoadFailed(Struct, frozen=True, array_like=True, tag="load_failed"):
    error: SerializedError


class StepBatch(Struct, frozen=True, array_like=True, tag="steps"):
    """The steps that jobs yielded, and the jobs that ended, since the last batch."""

    steps: list[tuple[int, list[Step]]]
    ended: list[tuple[int, SerializedError | None]] = []


class CallResult(Struct, frozen=True, array_like=True, tag="result"):
    """The value that a method returned, or the error that it raised."""

    number: int
    value: object = None
    error: SerializedError | None = None


class Pong(Struct, frozen=True, array_like=True, tag="pong"):
    statistics: dict[str, float] = {}  # what the engine measures about itself, by name


ControlCall: TypeAlias = LoadAdapter | UnloadAdapter | SleepEngine | WakeEngine
ContentCall: TypeAlias = EmbedInputs | ScorePairs | TokenizeText | CountPrompt
EngineCall: TypeAlias = AdmitJob | ContentCall | ProbeEngine | ControlCall
ToChild: TypeAlias = LoadEngine | StartJob | EngineCall | CancelCall | Ping | Shutdown
LoadReport: TypeAlias = EngineReady | LoadFailed  # the first message from a child
ToParent: TypeAlias = StepBatch | CallResult | Pong  # all others

_encoder = msgspec.msgpack.Encoder()
child_decoder: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)
parent_decoder: msgspec.msgpack.Decoder[ToParent] = msgspec.msgpack.Decoder(ToParent)
load_decoder: msgspec.msgpack.Decoder[LoadReport] = msgspec.msgpack.Decoder(LoadReport)


def encode_message(message: ToChild | LoadReport | ToParent) -> bytes:
    body = _encoder.encode(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise TooLarge("The request is too large for the engine.")
    return body
