"""Values as models write them, rewritten as JSON while they arrive.

One scanner reads JSON, Python's literals, and what lies between them: single quotes, `True` and
`None`, bare keys, commas too many or too few, tuples, and strings between marks of the model's own.
Valid JSON goes through as it is, letter by letter. Whatever comes, what was handed out is the
beginning of valid JSON: a key is held back until its value begins, so that closing what is open
(`Value.closing`) always completes it.

A value that cannot be one at all is `Refused`, but only before anything of it was handed out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from dragoman.output.arguments.json_strings import PLAIN, escaped, quoted, read_escape, word_of
from dragoman.output.arguments.parameter_types import STRING, Types
from dragoman.output.text_buffer import UnexpectedEnd, MarkerSet, ReadSteps, Mismatch, TextBuffer, is_at_marker

Out = Callable[[str], object]

_SPACES = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[^\s,:=\[\]{}()\"']+")
_LOOSE = re.compile(r"[^,\]}]+")
DEEPEST = 128
LONGEST_LEAD = 4096  # of white space and a key before a value, no more is repeated


class Value:
    """Reads one value and hands it out as JSON."""

    __slots__ = (
        "_bare",
        "_hold",
        "_lead",
        "_open",
        "_out",
        "_plain",
        "_quotes",
        "_src",
        "_types",
        "_unsure",
        "cast",
        "casts",
        "ends",
        "forgiving",
        "glued",
        "keys",
        "object",
        "stack",
    )

    def __init__(
        self,
        src: TextBuffer,
        out: Out,
        quotes: MarkerSet | None = None,
        bare: bool = False,
        types: Mapping[str, Types] | None = None,
    ) -> None:
        self._src = src
        self._out = out
        self._quotes = quotes
        self._bare = bare
        self._types = types
        self._lead = ""  # what comes before the next value, held back until there is one
        self._open = ""  # braces whose kind is not known yet, with what stands between them
        self._unsure = 0  # how many they are
        self._plain = ""  # a key without quotes
        self._hold: str | None = None  # the key that a value is read for
        self.stack: list[str] = []
        self.keys: Sequence[str] = ()  # names that may be glued to the end of a bare word
        self.glued = ""  # the one that was
        self.ends: MarkerSet | None = None  # what ends the value, however much of it is open
        self.cast: Callable[[str, Types], str] = _as_it_is  # makes of a word what the types say
        self.casts = False  # whether the schema types strings too
        self.object = False  # whether it must be an object
        self.forgiving = False  # whether a key needs no colon

    def closing(self) -> str:
        """What completes the value as it stands."""
        return "".join(reversed(self.stack[: len(self.stack) - self._unsure]))

    def held(self) -> str:
        """What was read and not handed out yet."""
        return self._open + self._lead

    def read(self) -> ReadSteps[None]:
        """Read the value to its end."""
        yield from self._value()
        while self.stack:
            letter = yield from self._next()
            if letter in "}])":
                self._close()
            elif letter in ",;":
                self._src.pos += 1
                self._lead = ","
            elif self.stack[-1] == "}":
                yield from self._member()
            else:
                if "," not in self._lead:  # one that was left out
                    self._lead = "," + (self._lead or " ")
                yield from self._value()

    # what stands between values

    def _next(self) -> ReadSteps[str]:
        """The next letter that is no white space; the space goes with what comes before it."""
        src = self._src
        while True:
            if src.pos < len(src.text):
                letter = src.text[src.pos]
                if letter not in " \t\r\n":
                    ends = self.ends
                    if ends is not None and letter in ends.first_chars and (yield from is_at_marker(src, ends)):
                        raise Mismatch
                    return letter
                found = _SPACES.match(src.text, src.pos)
                assert found is not None  # noqa: S101
                src.pos = found.end()
                self._lead += found.group()[: max(0, LONGEST_LEAD - len(self._lead))]
                continue
            if src.ended:
                raise UnexpectedEnd
            yield

    def _begin(self, text: str) -> None:
        """Hand out the beginning of a value, and all that was held back for it."""
        lead, self._lead = self._open + self._lead, ""
        self._open, self._unsure = "", 0
        self._out(lead + text)

    def _close(self) -> None:
        self._src.pos += 1
        closer = self.stack.pop()
        if "," in self._lead:
            self._lead = ""
        self._begin(closer)

    # values

    def _value(self) -> ReadSteps[None]:
        src = self._src
        letter = yield from self._next()
        if letter in "\"'":
            src.pos += 1
            yield from self._string(letter)
        elif letter in "{[(":
            if len(self.stack) >= DEEPEST:
                raise Mismatch
            src.pos += 1
            yield from self._container(letter)
        elif self._quotes is not None and (yield from self._marked()):
            return
        else:
            yield from self._bareword()

    def _container(self, letter: str) -> ReadSteps[None]:
        self._hold = None  # the key's type is not the type of what is in it
        if letter != "{":
            self._begin("[")
            self.stack.append("]")
            following = yield from self._next()
            if following not in "}])":
                yield from self._value()
            return
        self._lead, self._open = "", self._open + self._lead + "{"
        self._unsure += 1
        self.stack.append("}")
        following = yield from self._next()
        if following not in "}])":
            yield from self._member()

    def _member(self) -> ReadSteps[None]:
        """A key and its value; or, of what Python calls a set, one element."""
        if self.stack[-1] != "}":
            yield from self._value()
            return
        fresh = bool(self._open)
        lead = self._lead
        if not fresh and "," not in lead:
            lead = "," + (lead or " ")
        self._lead = self._plain = ""
        key = yield from self._key()
        letter = yield from self._next()
        if letter in ":=" or (self.forgiving and letter not in ",}"):
            self._src.pos += letter in ":="
            self._lead = f"{lead}{key}:"
            self._hold = key if len(self.stack) == 1 else None
            yield from self._value()
            self._hold = None
        elif letter in ",}" and fresh and not (self.object and len(self.stack) == 1):
            self.stack[-1] = "]"
            self._open = self._open[:-1] + "["
            self._lead = lead
            self._begin(word_of(self._plain) if self._plain else key)
        else:
            raise Mismatch

    def _key(self) -> ReadSteps[str]:
        src = self._src
        letter = src.text[src.pos]
        if letter in "\"'":
            src.pos += 1
            parts: list[str] = ['"']
            yield from self._letters(letter, parts.append)
            return "".join([*parts, '"'])
        if self._quotes is not None:
            start, end, number = self._quotes.match(src)
            while number < 0 <= start and not src.ended:
                yield
                start, end, number = self._quotes.match(src)
            if number >= 0:
                src.pos = end
                parts = ['"']
                yield from self._until_mark(number, parts.append)
                return "".join([*parts, '"'])
        self._plain = yield from self._word(_WORD)
        if not self._plain:
            raise Mismatch
        return quoted(self._plain)

    def _string(self, quote: str) -> ReadSteps[None]:
        self._begin('"')
        self.stack.append('"')
        yield from self._letters(quote, self._out)
        self.stack.pop()
        self._out('"')

    def _letters(self, quote: str, out: Out) -> ReadSteps[None]:
        """The inside of a string up to its quote, as JSON writes it."""
        src = self._src
        search = PLAIN[quote].search
        while True:
            text, at = src.text, src.pos
            found = search(text, at)
            if found is None:
                if at < len(text):
                    src.pos = len(text)
                    out(text[at:] if at else text)
                if src.ended:
                    raise UnexpectedEnd
                yield
                continue
            end = found.start()
            letter = text[end]
            if letter == quote:
                src.pos = end + 1
                if end > at:
                    out(text[at:end])
                return
            if letter != "\\":
                src.pos = end + 1
                out(text[at:end] + escaped(letter))
                continue
            src.pos = end
            if end > at:
                out(text[at:end])
            out((yield from read_escape(src)))

    def _marked(self) -> ReadSteps[bool]:
        """A string between marks of the model's own; nothing in it is escaped."""
        src, quotes = self._src, self._quotes
        assert quotes is not None  # noqa: S101
        while True:
            start, end, number = quotes.match(src)
            if number >= 0:
                break
            if start < 0 or src.ended:
                return False
            yield
        src.pos = end
        types = self._wanted() if self.casts else None
        if types and types != STRING:
            parts: list[str] = []
            try:
                yield from self._until_mark(number, parts.append, plain=True)
            except UnexpectedEnd:
                self._begin('"' + escaped("".join(parts)))
                self.stack.append('"')
                raise
            self._begin(self.cast("".join(parts), types))
            return True
        self._begin('"')
        self.stack.append('"')
        yield from self._until_mark(number, self._out)
        self.stack.pop()
        self._out('"')
        return True

    def _wanted(self) -> Types | None:
        """What the schema says of the value that is read."""
        if self._types is None or self._hold is None:
            return None
        return self._types.get(json.loads(self._hold))

    def _until_mark(self, number: int, out: Out, plain: bool = False) -> ReadSteps[None]:
        write = str if plain else escaped
        src, quotes = self._src, self._quotes
        assert quotes is not None  # noqa: S101
        while True:
            start, end, found = quotes.search(src)
            piece, src.pos = src.text[src.pos : start], start
            if piece:
                out(write(piece))
            if found >= 0:
                src.pos = end
                return
            if src.ended:
                piece, src.pos = src.text[src.pos :], len(src.text)
                if piece:
                    out(write(piece))
                raise UnexpectedEnd
            yield

    def _word(self, pattern: re.Pattern[str]) -> ReadSteps[str]:
        src = self._src
        parts: list[str] = []
        while True:
            found = pattern.match(src.text, src.pos)
            if found is not None:
                parts.append(found.group())
                src.pos = found.end()
            if src.has_more:
                return "".join(parts)
            if src.ended:
                if not parts:
                    raise UnexpectedEnd
                return "".join(parts)
            yield

    def _bareword(self) -> ReadSteps[None]:
        word = yield from self._word(_LOOSE if self._bare else _WORD)
        if not word.strip():
            if not self.stack and not self._open:
                raise Mismatch
            if not self._src.has_more:
                raise UnexpectedEnd
            if self._src.text[self._src.pos] not in "}]),":
                self._src.pos += 1  # a letter that means nothing here
            self._begin("null")
            return
        word = word.strip()
        if self.keys and not self.stack and self._src.text[self._src.pos : self._src.pos + 1] == "=":
            self.glued = next((key for key in self.keys if word.endswith(key) and word != key), "")
            word = word.removesuffix(self.glued)
        self._begin(self._typed(word))

    def _typed(self, word: str) -> str:
        types = self._wanted()
        if types:
            return self.cast(word, types)
        return word_of(word)


def _as_it_is(word: str, _types: Types) -> str:
    return word_of(word)
