"""The special tokens around texts that a model embeds or scores.

A text that is not continued has an end, and many models want a special token there:
`[CLS] text [SEP]`. A pair of texts has one between them, too, and some models give the tokens of
the second text another type. A GGUF file lists the tokens and which of them to add, or has a
template for pairs. A `tokenizer.json` has a post-processor with both patterns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from dragoman.types import Json

PREFIX = "tokenizer.ggml."
PAIR_TEMPLATE = "tokenizer.chat_template.rerank"
QUERY, DOCUMENT = "{query}", "{document}"
Ids: TypeAlias = tuple[int, ...]
PatternEntry: TypeAlias = tuple[str, int]  # the id of a text (`A`, `B`) or token, and its type


class TextFormat(Struct, frozen=True, kw_only=True):
    """What to put around one text, and around two."""

    start: Ids = ()
    end: Ids = ()
    pair_start: Ids = ()
    pair_middle: Ids = ()
    pair_end: Ids = ()
    has_types: bool = False  # tokens from the second text on have the second type
    pair_template: str | None = None  # a text with `{query}` and `{document}`, instead of the above

    def wrap(self, ids: Sequence[int]) -> list[int]:
        """Return the tokens of a text with those around it."""
        return [*self.start, *ids, *self.end]


def format_from_gguf(metadata: Mapping[str, Any], add_bos: bool) -> TextFormat:
    """Read the format as the native library reads it."""
    model = metadata.get(PREFIX + "model")
    ids = {name: _read_id(metadata, name) for name in ("bos", "eos", "seperator")}
    if model == "bert":
        ids["bos"] = ids["bos"] or _read_id(metadata, "cls")
    separator, end = ids["seperator"], ids["eos"] or ids["seperator"]
    adds_end = _read_flag(metadata, "add_eos_token", default=model == "t5")
    adds_separator = _read_flag(metadata, "add_sep_token", default=model == "bert")
    start = ids["bos"] if add_bos or model == "bert" else ()
    template = metadata.get(PAIR_TEMPLATE)
    return TextFormat(
        start=start,
        end=separator if model == "bert" else end if adds_end else (),
        pair_start=start,
        pair_middle=(*(end if adds_end else ()), *(separator if adds_separator else ())),
        pair_end=end if adds_end else (),
        pair_template=template if isinstance(template, str) and template else None,
    )


def _read_id(metadata: Mapping[str, Any], name: str) -> Ids:
    value = metadata.get(f"{PREFIX}{name}_token_id")
    return (value,) if isinstance(value, int) and value >= 0 else ()


def _read_flag(metadata: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = metadata.get(PREFIX + name)
    return value if isinstance(value, bool) else default


def format_from_json(file: Mapping[str, Json], bos: Ids) -> TextFormat:
    """Read the format of a `tokenizer.json`; `bos` is the token that starts texts without one."""
    for step in _iterate_processors(file.get("post_processor")):
        patterns = _read_patterns(step)
        if patterns is None:
            continue
        single, pair, ids = patterns
        return _make_format(single, pair, ids)
    return TextFormat(start=bos, pair_start=bos)


def _iterate_processors(processor: Json) -> Iterator[dict[str, Json]]:
    if isinstance(processor, dict):
        steps = processor.get("processors")
        for step in steps if isinstance(steps, list) else [processor]:
            if isinstance(step, dict):
                yield step


def _read_patterns(
    step: dict[str, Json],
) -> tuple[list[PatternEntry], list[PatternEntry], dict[str, Ids]] | None:
    """Return the patterns of one and two texts, and the ids of the tokens in them."""
    kind = step.get("type")
    if kind == "TemplateProcessing":
        ids = {name: tuple(entry["ids"]) for name, entry in step.get("special_tokens", {}).items()}
        single = [_read_entry(entry) for entry in step.get("single", [])]
        return single, [_read_entry(entry) for entry in step.get("pair", [])], ids
    if kind not in ("BertProcessing", "RobertaProcessing"):
        return None
    ids = {name: (step[name][1],) for name in ("cls", "sep")}
    single = [("cls", 0), ("A", 0), ("sep", 0)]
    second = 1 if kind == "BertProcessing" else 0
    middle = [] if kind == "BertProcessing" else [("sep", 0)]
    return single, [*single, *middle, ("B", second), ("sep", second)], ids


def _read_entry(entry: dict[str, Json]) -> PatternEntry:
    ((kind, value),) = entry.items()
    name: str = value["id"]
    return (name if kind == "Sequence" else f"token {name}"), int(value.get("type_id", 0))


def _make_format(
    single: list[PatternEntry], pair: list[PatternEntry], ids: dict[str, Ids]
) -> TextFormat:
    start, end = _split_pattern(single, ids, ("A",))
    if [name for name, _ in pair if name in ("A", "B")] != ["A", "B"]:
        return TextFormat(start=start, end=end, pair_start=start, pair_end=end)
    pair_start, pair_middle, pair_end = _split_pattern(pair, ids, ("A", "B"))
    return TextFormat(
        start=start,
        end=end,
        pair_start=pair_start,
        pair_middle=pair_middle,
        pair_end=pair_end,
        has_types=any(name == "B" and kind for name, kind in pair),
    )


def _split_pattern(
    pattern: list[PatternEntry], ids: dict[str, Ids], texts: tuple[str, ...]
) -> list[Ids]:
    """Return the tokens before, between and after the texts of a pattern."""
    parts: list[Ids] = [()]
    for name, _ in pattern:
        if name in texts:
            parts.append(())
        else:
            parts[-1] += ids.get(name.removeprefix("token "), ())
    return parts if len(parts) == len(texts) + 1 else [()] * (len(texts) + 1)
