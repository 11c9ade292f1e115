"""A vocabulary, from whatever file: the bytes of each token, and which tokens are special.

There are four kinds of tokens. Ordinary tokens represent bytes of text. *Control* tokens are never
shown and plain text never becomes one. *Markup* tokens (`<tool_call>`, `</think>`) are shown, but
only a template may write them; plain text that looks like one is encoded as ordinary tokens, so a
user cannot forge a turn. Other words that a model's author defined (runs of spaces, HTML tags)
match in plain text, as they did in training.

An answer ends with the tokens that the model's file lists (end of sequence, of turn, of message),
and with well-known texts that are special tokens in its vocabulary. No token id is hard-coded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from dragoman.tokenizers.text_format import TextFormat

# texts that end an answer if they are special tokens
STOP_TEXTS = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<end_of_turn>",
        "<turn|>",
        "<|tool_response>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|end_of_sentence|>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "<end_of_utterance>",
        "<|eom_id|>",
        "<EOT>",
        "\u2581<EOT>",
        "[EOT]",
        "[EOS]",
        "</s>",
        "<eos>",
        "[e~[",
    }
)
BOS_TEXTS = ("<|begin_of_text|>", "<bos>", "<s>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>")
# words in angle brackets that are ordinary text to models
_HTML = (
    "a b blockquote br caption code dd div dl dt em h1 h2 h3 h4 h5 h6 hr i img li ol p pre s span "
    "strong sub sup table tbody td tfoot th thead tr u ul"
)
HTML_TAGS = frozenset(_HTML.split())
# texts of the tokens that mark what to fill in, by their role
INFILL_TEXTS = {
    "prefix": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<\uff5cfim\u2581begin\uff5c>",
        "<PRE>",
        "\u2581<PRE>",
        "<|code_prefix|>",
        "[PREFIX]",
    ),
    "suffix": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<\uff5cfim\u2581hole\uff5c>",
        "<SUF>",
        "\u2581<SUF>",
        "<|code_suffix|>",
        "[SUFFIX]",
    ),
    "middle": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<\uff5cfim\u2581end\uff5c>",
        "<MID>",
        "\u2581<MID>",
        "<|code_middle|>",
        "[MIDDLE]",
    ),
    "pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "repository": (
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<repo_name>",
    ),
    "file": ("<|file_sep|>", "<file_sep>"),
}
_MARKUP = re.compile(r"<[^\s<>]+>|\[/?[A-Z_]+\]")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class InfillTokens(Struct, frozen=True, kw_only=True):
    """The tokens with which a model was trained to fill in text between a prefix and a suffix.

    Without a `middle` token, the suffix comes first and the model continues the prefix.
    """

    prefix: int
    suffix: int
    middle: int | None = None
    pad: int | None = None
    repository: int | None = None  # before the name of a repository
    file: int | None = None  # before the name of a file

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end the filled-in text, as another file or repository would begin."""
        ids = (self.pad, self.repository, self.file)
        return tuple(token for token in ids if token is not None)


class Vocabulary(Struct, kw_only=True):
    """The tokens of a model, by id."""

    pieces: list[bytes]
    specials: dict[str, int] = {}  # tokens that a template may write, by their texts
    control: frozenset[int] = frozenset()
    bos_id: int | None = None
    eos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    add_bos: bool = False
    variables: dict[str, str] = {}  # of templates: bos_token and so on
    rstrip: frozenset[int] = frozenset()  # specials that strip the white space after them
    source: str = ""
    infill: InfillTokens | None = None
    text_format: TextFormat | None = None  # of texts to embed or score

    def get_text_format(self) -> TextFormat:
        """Return what is put around a text to embed or score: BOS, where nothing says more."""
        if self.text_format is not None:
            return self.text_format
        start = (self.bos_id,) if self.add_bos and self.bos_id is not None else ()
        return TextFormat(start=start, pair_start=start)


def is_markup(text: str) -> bool:
    """Whether the text looks like a marker of a chat format, rather than like words."""
    if _MARKUP.fullmatch(text) is None or _BYTE.fullmatch(text) is not None:
        return False
    return text.strip("</>").lower() not in HTML_TAGS


def find_stop_ids(listed: Iterable[int | None], specials: Mapping[str, int]) -> frozenset[int]:
    """Return all ids that end an answer: those the model lists, and well-known special tokens."""
    ids = {token for token in listed if token is not None}
    texts = STOP_TEXTS & specials.keys()
    # If a message can end with a return or a call, `<|end|>` only ends one of several messages
    if {"<|return|>", "<|call|>"} <= texts or {"<|calls|>", "<|flush|>"} <= texts:
        texts -= {"<|end|>"}
    return frozenset(ids | {specials[text] for text in texts})


def find_infill_tokens(
    listed: Mapping[str, int | None], tokens: Mapping[str, int]
) -> InfillTokens | None:
    """Return the tokens by role: those that the model lists, else well-known texts."""
    ids = {
        role: next((tokens[text] for text in texts if text in tokens), None)
        for role, texts in INFILL_TEXTS.items()
    }
    ids |= {role: token for role, token in listed.items() if token is not None}
    prefix, suffix = ids.pop("prefix"), ids.pop("suffix")
    if prefix is None or suffix is None:
        return None
    if ids["middle"] is None and prefix != tokens.get("[PREFIX]"):
        return None
    return InfillTokens(prefix=prefix, suffix=suffix, **ids)


def find_bos_id(specials: Mapping[str, int]) -> int | None:
    return next((specials[text] for text in BOS_TEXTS if text in specials), None)


def parse_byte_token(text: str) -> bytes | None:
    """Return the byte of a token like `<0x0A>`."""
    match = _BYTE.fullmatch(text)
    return bytes([int(match[1], 16)]) if match else None


def _make_byte_characters() -> dict[str, int]:
    """Return the characters that byte-level vocabularies use for bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    characters = {chr(byte): byte for byte in printable}
    return characters | {chr(256 + index): byte for index, byte in enumerate(others)}


BYTE_CHARACTERS = _make_byte_characters()


def decode_byte_level(text: str) -> bytes:
    """Return the bytes of a byte-level token; other characters are encoded as UTF-8."""
    try:
        return bytes(map(BYTE_CHARACTERS.__getitem__, text))
    except KeyError:
        return b"".join(
            bytes([BYTE_CHARACTERS[char]]) if char in BYTE_CHARACTERS else encode_raw(char)
            for char in text
        )


def encode_raw(text: str) -> bytes:
    """Return the bytes as they are in the file, even if they are not UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def decode_spaced(text: str) -> bytes:
    """Return the bytes of a token that writes spaces as U+2581."""
    return encode_raw(text.replace("\u2581", " "))
