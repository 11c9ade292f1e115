"""Reads one choice: an engine's steps in, deltas out.

`Reader` is for plain text. `ChatReader` is for a model with output formats: its text goes through
the output parser, which assigns it to channels. Both count tokens and keep logprobs with the text.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from itertools import groupby

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.engines.invalid_steps import FINISHES, INVALID_ANSWER
from dragoman.errors import EngineFailed
from dragoman.events import Delta, Finish, Token, Usage
from dragoman.output.library import OutputParser
from dragoman.output.span import Span
from dragoman.pipeline.detokenize import Detokenizer, ReleasedText
from dragoman.pipeline.reading.call_limiter import CallLimiter, CallLimits
from dragoman.pipeline.reading.split_step import is_single, split_step
from dragoman.pipeline.reading.usage import TokenLedger, TokenSpan
from dragoman.types import Job, Logprob, Step, StepFinish

MAX_HELD = 1000  # characters; a longer unfinished call never turns back into text
MAX_INTERRUPTIONS = 3  # after that, the model may reason without limit


def get_finish(step: Step) -> StepFinish:
    """Return why a choice ends with this step; if the engine gives no reason, the token limit."""
    if step.finish is None:
        return "length"
    if step.finish not in FINISHES:
        raise EngineFailed(INVALID_ANSWER)
    return step.finish


class Reader:
    """Reads the steps of choice `index`. The `first` choice of a prompt also counts the prompt."""

    def __init__(
        self, index: int, job: Job, detokenizer: Detokenizer, echo: str, *, first: bool
    ) -> None:
        self._index = index
        self._finished = False
        self._prompt = job.prompt
        self._counts_prompt = first
        self._echo = echo
        self.prompt_logprobs: tuple[Token, ...] = ()  # for `echo`
        self._detokenizer = detokenizer
        self._is_plain = detokenizer.is_plain and not echo
        self._limit = math.inf if job.sampling.max_tokens is None else job.sampling.max_tokens
        self.completion_tokens = 0  # so far
        self._cached_tokens = 0
        self._prompt_tokens: int | None = None
        self.ids: list[int] = []  # of the tokens that were generated
        self._ids_are_exact = True  # `ids` are the tokens of the emitted text, and no others
        self.call_names: list[str] = []  # of the tools that were called
        self.rejected_calls: list[str] = []  # why text that looked like calls was rejected
        self.generated_call_ids: set[str] = set()  # ids of calls that the model did not name

    def feed(self, step: Step) -> list[Delta]:
        """Return what the choice gained; a finished choice gains nothing."""
        total = self.completion_tokens + (step.tokens or len(step.ids))
        if self._is_plain and total < self._limit and step.finish is None and not self._finished:
            self._count_tokens(step)  # the usual case
            text = self._detokenizer.read(step)
            return [Delta(self._index, text)] if text else []
        if (self._is_plain and total <= self._limit) or is_single(step):
            delta = None if self._finished else self._feed(step)
            return [] if delta is None else [delta]
        parts = split_step(step)
        return [delta for part in parts if not self._finished and (delta := self._feed(part))]

    @property
    def is_finished(self) -> bool:
        return self._finished

    @property
    def exact_ids(self) -> list[int] | None:
        """The tokens of the emitted text, if all of them are known."""
        return self.ids if self._ids_are_exact else None

    def _count_tokens(self, step: Step) -> int:
        """Count and store the tokens of a step."""
        known = len(step.ids)
        count = step.tokens or known
        self.completion_tokens += count
        self.ids += step.ids
        has_stop = step.stop_id is not None  # the stop token counts, but is not among the ids
        if not known <= count <= known + has_stop:
            self._ids_are_exact = False
            if count < 0:
                raise EngineFailed(INVALID_ANSWER)
        return count

    def _feed(self, step: Step) -> Delta | None:
        self._count_tokens(step)
        # Enforces `max_tokens` for engines that do not.
        at_limit = self.completion_tokens >= self._limit
        released = self._detokenizer.feed(step)
        if self._echo:
            released = self._prepend_echo(released)
        if released.stop is not None or step.finish is not None or at_limit:
            return self._finish(step, released)
        if released.text or released.tokens:
            return Delta(self._index, released.text, tokens=released.tokens)
        return None

    def make_tokens(self, logprobs: list[Logprob]) -> tuple[Token, ...]:
        """Make tokens as clients get them."""
        return tuple(map(self._detokenizer.make_token, logprobs))

    def _finish(self, step: Step, released: ReleasedText) -> Delta:
        """Finish the choice. A stop string wins over any other reason to finish."""
        self._finished = True
        text, tokens = released.text, released.tokens
        stop: str | int | None = released.stop
        finish = get_finish(step)
        if stop is None:
            rest = self._detokenizer.close()
            text, tokens, stop = text + rest.text, tokens + rest.tokens, step.stop_id
        else:
            finish = "stop"
            self._ids_are_exact = False
        usage = self._make_usage(step)
        return Delta(self._index, text, tokens=tokens, finish=finish, stop=stop, usage=usage)

    def _prepend_echo(self, released: ReleasedText) -> ReleasedText:
        """Put the echoed prompt before the first text."""
        echo, self._echo = self._echo, ""
        tokens = self.prompt_logprobs + released.tokens
        return ReleasedText(echo + released.text, tokens, released.stop)

    def release(self) -> None:
        """Free the memory of text that was not read to its end; nothing is read afterwards."""

    def count_prompt(self, step: Step) -> None:
        """Use the engine's own counts of the prompt's tokens."""
        if min(step.cached_tokens or 0, step.prompt_tokens or 0) < 0:
            raise EngineFailed(INVALID_ANSWER)
        self._cached_tokens = step.cached_tokens or self._cached_tokens
        self._prompt_tokens = step.prompt_tokens or self._prompt_tokens

    @property
    def prompt_tokens(self) -> int:
        """The tokens of the prompt, which is counted once, with its first choice."""
        known = len(self._prompt) if isinstance(self._prompt, list) else 0
        counted = known if self._prompt_tokens is None else self._prompt_tokens
        return counted if self._counts_prompt else 0

    def _make_usage(self, last: Step) -> Usage:
        prompt, (drafted, accepted) = self.prompt_tokens, last.drafts or (0, 0)
        cached = min(self._cached_tokens, prompt)
        return Usage(
            prompt=prompt,
            cached=cached,
            completion=self.completion_tokens,
            drafted=drafted,
            accepted=accepted,
        )


class ReaderOptions(Struct, frozen=True):
    """How to read one choice of a chat."""

    parser: OutputParser
    include_reasoning: bool = True  # the client wants the reasoning
    parser_only_tokens: frozenset[int] = frozenset()  # special tokens that only the parser sees
    has_grammar: bool = False  # the engine follows a grammar
    strip_leading_space: bool = False  # whitespace before the content is not part of it
    budget: int | None = None  # maximum number of reasoning tokens
    reasoning_close: str = ""  # the marker that ends reasoning when the budget is used up
    call_limits: CallLimits = CallLimits()


class ChatReader(Reader):
    """Reads a choice of a chat: the parser decides which text is content, reasoning or a call."""

    def __init__(
        self,
        index: int,
        job: Job,
        detokenizer: Detokenizer,
        options: ReaderOptions,
        *,
        first: bool,
    ) -> None:
        super().__init__(index, job, detokenizer, "", first=first)
        self._options = options
        self._parser = options.parser
        self.rejected_calls = options.parser.rejected_calls
        self._logprobs = job.logprobs is not None
        self._tracks_tokens = self._logprobs or bool(options.parser_only_tokens)
        self._ledger = TokenLedger()
        self._is_leading = options.strip_leading_space  # no content was emitted yet
        self._job_id = job.id
        self._model_call_ids: set[str] = set()  # ids that the model gave its calls
        self._calls = CallLimiter(options.call_limits)
        self.call_names = self._calls.names
        # The rest is for a reasoning budget only.
        self._steps: list[Step] = []
        self._is_undecided = False  # the last characters may still become a marker
        self._undecided_tokens = 0
        self._interruptions_left = MAX_INTERRUPTIONS if options.budget is not None else 0
        self.interrupted = False  # the budget is used up; a new job must continue the answer

    def feed(self, step: Step) -> list[Delta]:
        if is_single(step):
            return [] if self._finished else self._feed_single(step)
        deltas: list[Delta] = []
        for part in split_step(step):
            if self._finished or self.interrupted:
                break
            deltas += self._feed_single(part)
        return merge_deltas(deltas)

    def _feed_single(self, step: Step) -> list[Delta]:
        """Read a step of at most one token: cut at stop strings, parse, and check all limits."""
        count = self._count_tokens(step)
        start, text, end = self._detokenizer.read_with_offsets(step)
        if end > start:
            self._ledger.add(self._make_span(step, start, end, count))
        stop = None
        if self._options.has_grammar and self._parser.is_in_call:
            text = self._detokenizer.release_held(text)  # a stop must not cut a constrained call
        else:
            text, stop = self._detokenizer.split_at_stop(text)
        deltas = self._make_deltas(self._parser.feed(text)) if text else []
        if deltas and deltas[-1].channel == "tool_args":
            self._ledger.discard_before(start - MAX_HELD)  # the spans of a call are never taken
        is_over = stop is not None or step.finish is not None or self._calls.is_over
        if is_over or self.completion_tokens >= self._limit:
            return [*deltas, *self._finish_chat(step, stop)]
        if self._interruptions_left:
            self._steps.append(step)
            if self._is_budget_spent(count):
                deltas += self._interrupt()
        return deltas

    def _make_span(self, step: Step, start: int, end: int, count: int) -> TokenSpan:
        """Make the ledger's entry for the tokens of a step, which cover these characters."""
        if not self._tracks_tokens:
            return TokenSpan(start, end, count)
        is_single_token = step.text is None and len(step.ids) == 1
        is_special = is_single_token and step.ids[0] in self._options.parser_only_tokens
        entries = step.logprobs[:1] if is_single_token else step.logprobs
        logprobs = tuple(map(self._detokenizer.make_token, entries)) if self._logprobs else ()
        return TokenSpan(start, end, count, logprobs, is_special)

    def _make_deltas(self, spans: Sequence[Span]) -> list[Delta]:
        """Turn the parser's spans into deltas, with logprobs, unique call ids and call limits."""
        deltas: list[Delta] = []
        for channel, text, start, call, call_id in spans:
            if self._calls.is_open and channel != "tool_args":
                deltas += self._calls.end_call()
            if self._calls.is_over:
                break
            if channel == "text":
                if self._is_leading:
                    start, text = self._strip_leading(start, text)
                text, logprobs = self._ledger.take_text(start, text)
                if text:
                    deltas.append(Delta(self._index, text, tokens=logprobs))
            elif channel == "reasoning":
                text = self._ledger.take_reasoning(start, text)
                if text and self._options.include_reasoning:
                    deltas.append(Delta(self._index, text, channel))
            elif channel == "tool_name":
                unique_id = self._make_call_id(call_id)
                deltas += self._calls.start_call(
                    Delta(self._index, text, channel, call, id=unique_id)
                )
            else:
                deltas += self._calls.add_arguments(Delta(self._index, text, channel, call))
        if self._calls.is_open and not self._parser.is_in_call:
            deltas += self._calls.end_call()
        return deltas

    def _strip_leading(self, start: int, text: str) -> tuple[int, str]:
        """Remove the whitespace before the first content."""
        stripped = text.lstrip()
        self._is_leading = not stripped
        return start + len(text) - len(stripped), stripped

    def _make_call_id(self, call_id: str) -> str:
        """Return the model's own id, unless it is missing or not unique; else generate one."""
        if not call_id or call_id in self._model_call_ids:
            seed = f"{self._job_id}/{self._index}/{len(self.call_names) + 1}"
            call_id = "call_" + hashlib.blake2b(seed.encode(), digest_size=12).hexdigest()
            self.generated_call_ids.add(call_id)
            return call_id
        self._model_call_ids.add(call_id)
        return call_id

    def _finish_chat(self, step: Step, stop: str | None) -> list[Delta]:
        """Finish the choice. A call counts as made only if the model itself ended it."""
        self._finished = True
        deltas: list[Delta] = []
        finish: Finish = "stop"
        if stop is None and not self._calls.is_over:
            finish = get_finish(step)
            deltas += self._make_deltas(self._parser.feed(self._detokenizer.close().text))
        is_cut = stop is not None or finish == "length" or self._calls.is_over
        deltas += self._make_deltas(self._parser.close(truncated=is_cut))
        deltas += self._calls.release()
        self._ids_are_exact &= stop is None and not self._calls.is_over
        is_complete = stop is None or self._is_last_call_complete()
        if self._calls.is_over or (finish == "stop" and self.call_names and is_complete):
            finish = "tool_calls"
        last = deltas.pop() if deltas and deltas[-1].channel == "text" else Delta(self._index)
        reason = step.stop_id if stop is None else stop
        deltas.append(replace(last, finish=finish, stop=reason, usage=self._make_usage(step)))
        return deltas

    def release(self) -> None:
        self._parser.release()

    def _is_last_call_complete(self) -> bool:
        """Whether the last call was complete when a stop string ended the choice."""
        try:
            msgspec.json.decode(self._calls.arguments)
        except msgspec.DecodeError:
            return False
        return True

    def _make_usage(self, last: Step) -> Usage:
        return replace(super()._make_usage(last), reasoning=self._ledger.reasoning_tokens)

    # The reasoning budget, see `reasoning_budget`

    def _is_budget_spent(self, count: int) -> bool:
        """Whether reasoning has used up its budget.

        Waits while the text may still become the marker that ends reasoning. A marker has no more
        tokens than characters, so text that stays undecided for longer is a call being drafted.
        """
        was_undecided = self._is_undecided
        self._is_undecided = self._parser.is_waiting or self._detokenizer.is_holding
        if was_undecided and self._is_undecided:
            self._undecided_tokens += count
        else:
            self._undecided_tokens = 0
        tokens = self._ledger.reasoning_tokens + self._undecided_tokens
        is_certain = not self._is_undecided or self._undecided_tokens >= len(
            self._options.reasoning_close
        )
        return tokens >= (self._options.budget or 0) and is_certain and self._parser.in_reasoning

    def _interrupt(self) -> list[Delta]:
        self.interrupted = True
        self._interruptions_left -= 1
        self._is_undecided = False
        text = self._detokenizer.insert_text(self._options.reasoning_close)
        return self._make_deltas(self._parser.feed(text))

    def take_steps(self) -> list[Step]:
        """Return the steps of the interrupted job, for the job that continues it."""
        steps, self._steps = self._steps, []
        self.interrupted = False
        return steps

    def continue_from(self, prompt: list[int] | str) -> None:
        """Continue with a job whose prompt includes the output so far and the end of reasoning."""
        if isinstance(prompt, list) and isinstance(self._prompt, list):
            self.ids = prompt[len(self._prompt) :]


class ReleaseAtEnd:
    """Releases readers at the end of its block, also those whose choice was cut short."""

    __slots__ = ("_readers",)

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = readers

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.release()


def merge_deltas(deltas: Sequence[Delta]) -> list[Delta]:
    """Merge consecutive deltas of the same channel."""
    if len(deltas) < 2:
        return list(deltas)
    merged = []
    for _, group in groupby(deltas, lambda delta: (delta.channel, delta.call)):
        run = list(group)
        text = "".join(delta.text for delta in run)
        tokens = tuple(token for delta in run for token in delta.tokens)
        merged.append(run[0] if len(run) == 1 else replace(run[-1], text=text, tokens=tokens))
    return merged
