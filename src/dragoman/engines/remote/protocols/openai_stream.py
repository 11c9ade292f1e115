"""The streams of `/v1/completions` and `/v1/chat/completions` of any OpenAI-compatible server.

Such a server takes and returns text; nothing is known of its tokens but their number, which comes
with the usage at the end. Each choice is a request of its own, because many servers ignore `n`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from dragoman.engines.remote.failures import DECODE_ERRORS, InvalidFrame, make_stream_error
from dragoman.engines.remote.http.frames import DONE, decode_frame, replace_half_characters
from dragoman.engines.remote.settings import Upstream
from dragoman.errors import EngineFailed
from dragoman.types import Capabilities, Job, Json, Step, StepFinish

SAMPLING_FIELDS = frozenset(
    {"temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "max_tokens"}
)
# the reasons of OpenAI, and those of other servers that mean the same
STOP_REASONS = (
    "stop eos eos_token stop_token stop_sequence end end_turn done complete completed finished "
    "tool_call tool_calls tool-calls tool_use function_call "
    "content_filter safety recitation sensitive refusal repetition"
)
LENGTH_REASONS = (
    "length max_tokens max_length max_new_tokens max_output_tokens model_length token_limit "
    "context_length model_context_window_exceeded"
)
FINISHES: dict[str, StepFinish] = {
    **dict.fromkeys(STOP_REASONS.split(), "stop"),
    **dict.fromkeys(LENGTH_REASONS.split(), "length"),
}
NO_REASONS = (None, "", "null")  # some servers send one with each frame

NOTHING = msgspec.Raw(b"")  # `Raw` cannot be one of several types
EMPTY = (b"", b"null", b"{}")
# An answer may be this long: far longer than any real one of so many tokens
MAX_TOKEN_TEXT, EXTRA_TEXT = 512, 1 << 16  # characters
MAX_TEXT = 1 << 26  # without `max_tokens`
MAX_COUNT = 1 << 31  # tokens; more cannot be true


class TextPromptDetails(Struct):
    cached_tokens: int | None = None


class TextUsage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: TextPromptDetails | None = None


class TextChoice(Struct):
    text: str | None = None
    delta: msgspec.Raw = NOTHING  # of a chat
    message: msgspec.Raw = NOTHING  # of a chat that is not streamed
    finish_reason: str | None = None


class TextFrame(Struct):
    choices: list[TextChoice] | None = None
    usage: msgspec.Raw = NOTHING
    error: Json = None


decode = msgspec.json.Decoder(TextFrame).decode


class TextReader:
    """Reads the frames of one choice; `get_text` returns the text of a frame's choice.

    A server that ignores `max_tokens` would send text without end, so the answer's size is limited.
    """

    def __init__(
        self, choice: int, get_text: Callable[[TextChoice], str], max_tokens: int | None = None
    ) -> None:
        self._choice = choice
        self._get_text = get_text
        self._usage = TextUsage()
        self._finish: StepFinish | None = None
        self._frames = 0  # with text
        self._room = MAX_TEXT if max_tokens is None else max_tokens * MAX_TOKEN_TEXT + EXTRA_TEXT
        self._is_complete = False

    @property
    def is_complete(self) -> bool:
        return self._is_complete

    def read(self, frame: bytes) -> list[Step]:
        if self._is_complete:
            return []
        if frame == DONE:
            return self._end()
        decoded = decode_frame(decode, frame)
        if decoded.error:
            raise make_stream_error(decoded.error)
        if decoded.choices is None:
            check_other_frame(frame)
        has_usage = bytes(decoded.usage) not in EMPTY
        if has_usage:
            self._usage = read_usage(decoded.usage)
        if decoded.choices:
            return self._read_choice(decoded.choices[0])
        return self._end() if has_usage and self._finish is not None else []

    def _read_choice(self, choice: TextChoice) -> list[Step]:
        if not self._frames and bytes(choice.delta) in EMPTY:  # others repeat all at the end
            choice.delta = choice.message
        text = self._get_text(choice)
        if text and self._finish is not None:  # the server goes on after the end
            return self._end()
        if choice.finish_reason not in NO_REASONS:
            self._finish = FINISHES.get(str(choice.finish_reason).lower())
            if self._finish is None:
                raise EngineFailed("The upstream server stopped before the answer was finished.")
        if not text:
            return []
        self._frames += 1
        self._room -= len(text)
        if self._room < 0:
            raise InvalidFrame("the answer is far longer than `max_tokens` allows")
        return [Step(self._choice, text)]

    def _end(self) -> list[Step]:
        """End the choice; a server that counts no tokens sends about one in each frame."""
        if self._finish is None:
            raise InvalidFrame("the stream ended before its choice")
        self._is_complete = True
        usage, details = self._usage, self._usage.prompt_tokens_details
        count = usage.completion_tokens
        return [
            Step(
                self._choice,
                "",
                tokens=self._frames if count is None else count,
                finish=self._finish,
                prompt_tokens=usage.prompt_tokens if self._choice == 0 else None,
                cached_tokens=None if details is None else details.cached_tokens,
            )
        ]


def check_other_frame(frame: bytes) -> None:
    """Raise the error that a frame without choices is in servers without an error object."""
    data = msgspec.json.decode(replace_half_characters(frame))
    if data.get("object") == "error" or "detail" in data or "error_code" in data:
        raise make_stream_error(data)


def read_usage(data: msgspec.Raw) -> TextUsage:
    """Return what a server counts; an answer is not lost because that cannot be read."""
    try:
        usage = msgspec.json.decode(data, type=TextUsage)
    except DECODE_ERRORS:
        return TextUsage()
    details = usage.prompt_tokens_details
    cached = None if details is None else details.cached_tokens
    counts = (usage.prompt_tokens or 0, usage.completion_tokens or 0, cached or 0)
    return usage if all(0 <= count < MAX_COUNT for count in counts) else TextUsage()


def make_text_capabilities(upstream: Upstream) -> Capabilities:
    return Capabilities(
        context=upstream.context,
        slots=upstream.slots,
        sampling=SAMPLING_FIELDS,
    )


def build_sampling(job: Job, choice: int) -> dict[str, Json]:
    """Return the sampling fields that are set; all others are the server's defaults."""
    sampling = job.sampling
    fields: Mapping[str, Json] = {
        name: value
        for name in sorted(SAMPLING_FIELDS)
        if (value := getattr(sampling, name)) is not None
    }
    seed = {} if sampling.seed is None else {"seed": sampling.seed + choice}
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    return {**fields, **seed, **streaming}
