"""Reads one choice: an engine's steps in, deltas out.

`Reader` is for text as it is. `ChatReader` is for a model that has formats of its own: there the
text goes through the output parser, and what comes out is on channels. Tokens are counted and
logprobs kept beside the text in both.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.events import Channel, Delta, Finish, Token, Usage
from dragoman.output.library import OutputParser
from dragoman.output.span import Span
from dragoman.pipeline.detokenize import Detokenizer, ReleasedText
from dragoman.pipeline.usage import TokenLedger, TokenSpan
from dragoman.types import Job, Logprob, Step

FINISHES = ("stop", "length")
MAX_HELD_CHARACTERS = 1000  # characters; more of a call that goes on are never given back as text
MAX_INTERRUPTIONS = (
    3  # a model that thinks again each time it is interrupted is left to it after so many
)


def split_step(step: Step) -> Iterator[Step]:
    """A step of several tokens as steps of one: a stop is then met at the same token always."""
    if step.spans or step.text is not None:
        parts = list(_split_text_step(step)) or [step]
    elif step.tokens in (0, len(step.ids)):
        marks = step.logprobs if len(step.logprobs) == len(step.ids) else None
        parts = [
            Step(ids=[token], tokens=1, logprobs=[marks[at]] if marks else [])
            for at, token in enumerate(step.ids)
        ]
    else:
        parts = [step]
    yield from parts[:-1]
    yield replace(parts[-1], finish=step.finish, stop_id=step.stop_id)


def _split_text_step(step: Step) -> Iterator[Step]:
    text, ids, marks = step.text or "", step.ids, step.logprobs
    at = count = 0
    for characters, tokens in step.spans or _find_token_spans(step):
        yield Step(
            text=text[at : at + characters],
            ids=ids[count : count + tokens],
            tokens=tokens,
            logprobs=marks[count : count + tokens],
        )
        at, count = at + characters, count + tokens


def _find_token_spans(step: Step) -> list[tuple[int, int]]:
    """The same of a step that came so, if its logprobs say it."""
    texts = [mark.text or "" for mark in step.logprobs]
    told = len(texts) == step.tokens and "".join(texts) == step.text
    return [(len(text), 1) for text in texts] if told else []


def _is_single(step: Step) -> bool:
    return len(step.ids) < 2 and len(step.logprobs) < 2 and not step.spans


class Reader:
    """Reads the steps of choice `index`; `first` of its prompt also counts the prompt."""

    def __init__(self, index: int, job: Job, text: Detokenizer, echo: str, *, first: bool) -> None:
        self._index = index
        self._done = False
        self._prompt = job.prompt
        self._counts_prompt = first
        self._echo = echo
        self._prompt_logprobs: tuple[Token, ...] = ()  # logprobs of the prompt, for `echo`
        self._detokenizer = text
        self._is_plain = text.is_plain and not echo
        self._limit = math.inf if job.sampling.max_tokens is None else job.sampling.max_tokens
        self._completion_tokens = self._cached_tokens = 0
        self._prompt_tokens: int | None = None
        self._ids: list[int] = []
        self._ids_are_exact = True  # those are all tokens of what was told, and no others
        self.generated_call_ids: set[str] = set()  # ids that we gave to calls

    def feed(self, step: Step) -> list[Delta]:
        """What the choice gained, if anything; a choice that is done gains nothing."""
        within = self._completion_tokens + (step.tokens or len(step.ids)) <= self._limit
        if (self._is_plain and within) or _is_single(step):
            delta = None if self._done else self._feed(step)
            return [] if delta is None else [delta]
        parts = split_step(step)
        return [delta for part in parts if not self._done and (delta := self._feed(part))]

    @property
    def exact_ids(self) -> list[int] | None:
        """The tokens of what was told, if all of them are known."""
        return self._ids if self._ids_are_exact else None

    def _count_tokens(self, step: Step) -> int:
        """Count the tokens of a step, and keep them."""
        known = len(step.ids)
        count = step.tokens or known
        self._completion_tokens += count
        self._ids += step.ids
        ended = step.stop_id is not None  # that one is counted, but it is not among them
        self._ids_are_exact &= known <= count <= known + ended
        return count

    def _feed(self, step: Step) -> Delta | None:
        self._count_tokens(step)
        over = (
            self._completion_tokens >= self._limit
        )  # an engine that does not count is counted here
        if self._is_plain and step.finish is None and not over:  # the usual case
            text = self._detokenizer.read(step)
            return Delta(self._index, text) if text else None
        released = self._detokenizer.feed(step)
        if self._echo:
            released = self._prepend_echo(released)
        if released.stop is not None or step.finish is not None or over:
            return self._finish(step, released)
        if released.text or released.tokens:
            return Delta(self._index, released.text, tokens=released.tokens)
        return None

    def set_prompt_logprobs(self, marks: list[Logprob]) -> None:
        """Logprobs of the prompt, to be told with it."""
        self._prompt_logprobs = tuple(map(self._detokenizer.make_token, marks))

    def _finish(self, step: Step, released: ReleasedText) -> Delta:
        """A stop string that was met wins over whatever else ended the choice."""
        self._done = True
        text, tokens = released.text, released.tokens
        stop: str | int | None = released.stop
        finish = step.finish if step.finish in FINISHES else "length"
        if stop is None:
            rest = self._detokenizer.close()
            text, tokens, stop = text + rest.text, tokens + rest.tokens, step.stop_id
        else:
            finish = "stop"
            self._ids_are_exact = False
        usage = self._usage()
        return Delta(self._index, text, tokens=tokens, finish=finish, stop=stop, usage=usage)

    def _prepend_echo(self, released: ReleasedText) -> ReleasedText:
        """Put the echoed prompt before the first text."""
        echo, self._echo = self._echo, ""
        return ReleasedText(
            echo + released.text, self._prompt_logprobs + released.tokens, released.stop
        )

    def count_prompt(self, step: Step) -> None:
        """The engine's own count of the prompt, whichever choice it came with."""
        self._cached_tokens = step.cached_tokens or self._cached_tokens
        self._prompt_tokens = step.prompt_tokens or self._prompt_tokens

    def _usage(self) -> Usage:
        """A prompt is counted once, with its first choice."""
        if not self._counts_prompt:
            return Usage(completion=self._completion_tokens)
        prompt = self._prompt_tokens
        if prompt is None:
            prompt = len(self._prompt) if isinstance(self._prompt, list) else 0
        return Usage(prompt, self._completion_tokens, min(self._cached_tokens, prompt))


class ReaderOptions(Struct, frozen=True):
    """How one choice of a chat is to be read."""

    parser: OutputParser
    include_reasoning: bool = True  # the client wants to see thoughts
    parser_only_tokens: frozenset[int] = (
        frozenset()
    )  # control tokens that are there for the parser only
    has_grammar: bool = False  # the engine keeps to a grammar
    strip_leading_space: bool = False  # white space before the text is no part of it
    budget: int | None = None  # most tokens of thoughts
    reasoning_close: str = ""  # the mark that ends a thought that takes too long


class ChatReader(Reader):
    """Reads a choice of a chat: the parser says what of its text is what."""

    def __init__(
        self, index: int, job: Job, text: Detokenizer, how: ReaderOptions, *, first: bool
    ) -> None:
        super().__init__(index, job, text, "", first=first)
        self._options = how
        self._parser = how.parser
        self._logprobs = job.logprobs is not None
        self._tracks_tokens = self._logprobs or bool(how.parser_only_tokens)
        self._ledger = TokenLedger()
        self._is_leading = how.strip_leading_space  # no text was told yet
        self._job_id = job.id
        self._calls = 0
        self._model_call_ids: set[str] = set()  # ids that the model gave its calls
        self._arguments: list[str] = []  # of the last call
        self._steps: list[Step] = []  # kept only where there is a budget
        self._is_undecided = False  # it is not certain yet what the last characters are
        self._undecided_tokens = 0  # tokens since then
        self._interruptions_left = (
            MAX_INTERRUPTIONS if how.budget is not None else 0
        )  # interruptions that are left
        self.interrupted = False  # it thought too long: what follows must come from another job

    def feed(self, step: Step) -> list[Delta]:
        if _is_single(step):
            return [] if self._done else self._feed_single(step)
        deltas: list[Delta] = []
        for part in split_step(step):
            if self._done or self.interrupted:
                break
            deltas += self._feed_single(part)
        return merge_deltas(deltas)

    def _feed_single(self, step: Step) -> list[Delta]:
        count = self._count_tokens(step)
        start, text, end = self._detokenizer.read_with_offsets(step)
        if end > start:
            self._ledger.add(self._make_span(step, start, end, count))
        if self._options.has_grammar and self._parser.is_in_call:
            text, met = (
                self._detokenizer.release_held(text),
                None,
            )  # a call that is held to its schema is whole
        else:
            text, met = self._detokenizer.split_at_stop(text)
        deltas = self._make_deltas(self._parser.feed(text)) if text else []
        if deltas and deltas[-1].channel == "tool_args":
            self._ledger.discard_before(
                start - MAX_HELD_CHARACTERS
            )  # tokens of a call claim nothing
        if met is not None or step.finish is not None or self._completion_tokens >= self._limit:
            return [*deltas, *self._finish_chat(step, met)]
        if self._interruptions_left:
            self._steps.append(step)
            if self._is_budget_spent(count):
                deltas += self._interrupt()
        return deltas

    def _make_span(self, step: Step, start: int, end: int, count: int) -> TokenSpan:
        if not self._tracks_tokens:
            return TokenSpan(start, end, count)
        single = step.text is None and len(step.ids) == 1
        control = single and step.ids[0] in self._options.parser_only_tokens
        marks = step.logprobs[:1] if single else step.logprobs
        told = tuple(map(self._detokenizer.make_token, marks)) if self._logprobs else ()
        return TokenSpan(start, end, count, told, control)

    def _make_deltas(self, spans: Sequence[Span]) -> list[Delta]:
        deltas = []
        for channel, text, start, call, given in spans:
            if channel == "text":
                if self._is_leading:
                    start, text = self._strip_leading(start, text)
                text, marks = self._ledger.take_text(start, text)
                if text:
                    deltas.append(Delta(self._index, text, tokens=marks))
            elif channel == "reasoning":
                text = self._ledger.take_reasoning(start, text)
                if text and self._options.include_reasoning:
                    deltas.append(Delta(self._index, text, channel))
            else:
                self._count_call(channel, text)
                name = self._make_call_id(given) if channel == "tool_name" else ""
                deltas.append(Delta(self._index, text, channel, call, id=name))
        return deltas

    def _strip_leading(self, start: int, text: str) -> tuple[int, str]:
        """Text without the white space that leads the answer."""
        said = text.lstrip()
        self._is_leading = not said
        return start + len(text) - len(said), said

    def _count_call(self, channel: Channel, text: str) -> None:
        if channel == "tool_name":
            self._calls += 1
            self._arguments.clear()
        elif self._detokenizer.has_stops:
            self._arguments.append(text)

    def _make_call_id(self, given: str) -> str:
        """The model's own id, unless it gave that before; else one of ours."""
        if not given or given in self._model_call_ids:
            which = f"{self._job_id}/{self._index}/{self._calls}"
            given = "call_" + hashlib.blake2b(which.encode(), digest_size=12).hexdigest()
            self.generated_call_ids.add(given)
            return given
        self._model_call_ids.add(given)
        return given

    def _finish_chat(self, step: Step, met: str | None) -> list[Delta]:
        """The end. A call counts as made if the model, and nobody else, ended it."""
        self._done = True
        self._ids_are_exact &= met is None
        deltas: list[Delta] = []
        finish: Finish = "stop"
        if met is None:
            finish = step.finish if step.finish in FINISHES else "length"
            deltas += self._make_deltas(self._parser.feed(self._detokenizer.close().text))
        deltas += self._make_deltas(self._parser.close(cut=met is not None or finish == "length"))
        if finish == "stop" and self._calls and (met is None or self._is_last_call_complete()):
            finish = "tool_calls"
        last = deltas.pop() if deltas and deltas[-1].channel == "text" else Delta(self._index)
        stop = step.stop_id if met is None else met
        deltas.append(replace(last, finish=finish, stop=stop, usage=self._usage()))
        return deltas

    def _is_last_call_complete(self) -> bool:
        """Whether the last call was complete when a stop string was met."""
        try:
            msgspec.json.decode("".join(self._arguments))
        except msgspec.DecodeError:
            return False
        return True

    def _usage(self) -> Usage:
        return replace(super()._usage(), reasoning=self._ledger.reasoning_tokens)

    # A budget for thoughts, see `thinking`

    def _is_budget_spent(self, count: int) -> bool:
        """Whether thoughts have used up the budget.

        What may be the mark that ends them is waited for; no mark has more tokens than letters, so
        what takes longer is a call that the model drafts.
        """
        waited, self._is_undecided = (
            self._is_undecided,
            self._parser.is_waiting or self._detokenizer.is_holding,
        )
        self._undecided_tokens = (
            self._undecided_tokens + count if waited and self._is_undecided else 0
        )
        spent = self._ledger.reasoning_tokens + self._undecided_tokens >= (
            self._options.budget or 0
        )
        sure = not self._is_undecided or self._undecided_tokens >= len(
            self._options.reasoning_close
        )
        return spent and sure and self._parser.in_reasoning

    def _interrupt(self) -> list[Delta]:
        self.interrupted = True
        self._interruptions_left -= 1
        self._is_undecided = False
        return self._make_deltas(
            self._parser.feed(self._detokenizer.insert_text(self._options.reasoning_close))
        )

    def take_steps(self) -> list[Step]:
        """What was heard of the job that was interrupted; another one takes over."""
        heard, self._steps = self._steps, []
        self.interrupted = False
        return heard

    def continue_from(self, prompt: list[int] | str) -> None:
        """The job that takes over has this prompt: ours, what was said, and what ends thoughts."""
        if isinstance(prompt, list) and isinstance(self._prompt, list):
            self._ids = prompt[len(self._prompt) :]


def merge_deltas(deltas: Sequence[Delta]) -> list[Delta]:
    """Neighbours on one channel as one."""
    if len(deltas) < 2:
        return list(deltas)
    made = []
    for _, group in groupby(deltas, lambda delta: (delta.channel, delta.call)):
        run = list(group)
        text = "".join(delta.text for delta in run)
        tokens = tuple(token for delta in run for token in delta.tokens)
        made.append(run[0] if len(run) == 1 else replace(run[-1], text=text, tokens=tokens))
    return made
