"""What was found out about a model's template, in words: `dragoman explain` and `dragoman formats`.

The template comes from a model that the catalogue knows, a GGUF file, a Jinja file, a
`tokenizer_config.json`, or a directory that holds one of these. No engine is started.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any

from dragoman.config import Settings
from dragoman.detection import DetectedFormats, ProbeTurn, RoundTripCheck, detect
from dragoman.detection.sources import TemplateSource, read_template_source, read_text
from dragoman.errors import ModelBroken
from dragoman.formats import reasoning_formats, tool_formats
from dragoman.output.library import collect_markers
from dragoman.output.spec import GAP, ReasoningFormat, ToolFormat

BEGINS = {
    "inside": "inside thoughts, which the template opened",
    "closed": "after thoughts, which the template closed",
    "open": "in neither; the model may think or not",
}
SURE = {
    "proved": "All that the template writes came back as it went in.",
    "partly": "What the template writes of calls came back; how it thinks is what it says.",
    "unverified": "No call could be rendered and read back; this is what the template says.",
    "generic": "The template has no calls of its own: tools are put into the system message.",
}
SILENT = "The template does not render even a plain message of a user, so nothing is known of it."
FAILED = "Some of what the template writes did not come back; see the proof."
STATUS = {
    "proved": "proved",
    "failed": "FAILED",
    "otherwise": "the template writes it as something else",
    "unwritten": "the template does not write it",
}
EVERYDAY = {
    "zqlook": "get_weather",
    "zqplace": "city",
    "zqnumber": "days",
    "zqvalue": "Paris",
    "zqsecond": "Rome",
    "zqanswer": "Let me see.",
    "zqthought": "I should look it up.",
}
INDENT = 12


def open_source(name: str, settings: Settings) -> TemplateSource:
    """The template that a name on the command line means."""
    path = Path(name)
    if not os.path.exists(path):  # which, unlike the method, takes a name of any length
        return _of_model(name, settings)
    found = read_template_source(path)
    if settings.chat_template and (found is not None or path.suffix == ".json"):
        return _replaced(found, settings.chat_template)
    if found is None and path.suffix == ".json":
        raise ModelBroken(f"{path.name} holds no chat template.")
    return found or _of_model(name, settings)


def _replaced(source: TemplateSource | None, file: str) -> TemplateSource:
    """The operator's template in place of a model's own."""
    template = read_text(Path(file))
    if source is None:
        return TemplateSource(template, file)
    return dataclasses.replace(source, template=template, place=file)


def _of_model(name: str, settings: Settings) -> TemplateSource:
    from dragoman import runtime
    from dragoman.engines.llamacpp import gguf
    from dragoman.models.loaders.gguf import read_chat_template

    entry = runtime.open_catalog(settings, name).added[0]
    if entry.kind != "gguf":
        found = read_template_source(entry.path)
        if entry.options.chat_template:
            return _replaced(found, entry.options.chat_template)
        if found is None:
            raise ModelBroken("The model has no chat template.")
        return found
    header = gguf.read_header(entry.path)
    template = read_chat_template(entry, header)
    if template is None:
        raise ModelBroken("The model has no chat template.")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    vocabulary = frozenset(tokens) if isinstance(tokens, list) else frozenset()
    chosen = entry.options.chat_template
    return TemplateSource(template, f"{chosen or entry.path}", vocabulary)


# Facts, for --json


def build_report(source: TemplateSource) -> dict[str, Any]:
    """Everything that is known, as plain data."""
    found = _detected(source)
    tools, reasoning = found.tool_format, found.reasoning_format
    return {
        "template": {
            "from": source.place,
            "sha256": _digest(source.template),
            "characters": len(source.template),
            "renders": found.renders_messages,
            "source": source.template,
        },
        "tools": {
            "format": found.tools,
            "generic": found.generic,
            "declares": found.renders_tools,
            "also": list(found.equivalent),
            "markers": _marks(tools, None),
        },
        "reasoning": {
            "format": found.reasoning,
            "markers": _marks(None, reasoning),
            **dataclasses.asdict(found.reasoning_controls),
        },
        "why": list(found.reasons),
        "states": dict(_states(tools, reasoning)),
        "examples": _examples(found),
        "proof": [_row(item) for item in found.checks],
        "sure": found.confidence,
    }


def _detected(source: TemplateSource) -> DetectedFormats:
    return detect(source.template, source.vocabulary, source.config)


def _row(item: RoundTripCheck) -> dict[str, Any]:
    row: dict[str, Any] = {"name": item.name, "status": item.status}
    if item.text:
        row |= {"prompt": item.prompt, "text": item.text}
    if item.status in ("failed", "otherwise"):
        row |= {"said": dataclasses.asdict(item.expected)}
        row |= {"came": dataclasses.asdict(item.parsed) if item.parsed else None}
    return row


def _digest(template: str) -> str:
    return hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest()


def _marks(tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> list[str]:
    return sorted(mark.replace(GAP, "") for mark in collect_markers(tools, reasoning))


def _states(
    tools: ToolFormat | None, reasoning: ReasoningFormat | None
) -> Iterator[tuple[str, list[str]]]:
    """Where the parser can be, and what leads from there to where."""
    calls = (*tools.section.open, *tools.call.open) if tools else ()
    opened = [*_lead(calls, "a call")]
    if tools is not None and (tools.unmarked_starts or tools.unmarked_at_start):
        opened += _lead(tools.unmarked_starts or ("a name",), "a call, at the beginning")
    header = (tools and tools.header) or (reasoning and reasoning.header)
    begun = [*_lead(header.open if header else (), "a header")]
    thoughts = [*_lead(reasoning.open if reasoning else (), "thoughts")]
    yield "text", [*opened, *thoughts, *begun]
    if reasoning is not None:
        ends = [*_lead(reasoning.close, "text"), *_lead(reasoning.ended_by, "a call")]
        yield "thoughts", [*ends, *begun]
    if tools is not None:
        yield "a call", [*_lead((*tools.call.close, *tools.section.close), "text")]
    if header:
        yield "a header", [f"{pattern or 'else'} → {way}" for pattern, way in header.routes]


def _lead(marks: Sequence[str], where: str) -> Iterator[str]:
    for mark in marks:
        if mark:
            yield f"{mark.replace(GAP, '')} → {where}"


def _examples(found: DetectedFormats) -> dict[str, str]:
    """One of each thing that the model may say, as the template writes it."""
    shown: dict[str, str] = {}
    kinds = set()
    for item in found.checks:
        kind = (bool(item.expected.text), bool(item.expected.reasoning), len(item.expected.calls))
        if item.text and kind not in kinds:
            kinds.add(kind)
            shown[item.name] = _everyday(item.text)
    if found.tool_format is not None and not any("call" in name for name in shown):
        shown["a call, which the template itself never writes"] = found.tool_format.example
    if found.reasoning_format is not None and not any("thoughts" in name for name in shown):
        shown["thoughts, which the template itself never writes"] = found.reasoning_format.example
    return shown


def _everyday(text: str) -> str:
    """With plain words for the made-up ones."""
    for made_up, plain in EVERYDAY.items():
        text = text.replace(made_up, plain)
    return text


# Words


def format_report(source: TemplateSource, whole: bool = False) -> str:
    """The same as text; `whole` adds the template itself."""
    found = _detected(source)
    tools, reasoning = found.tool_format, found.reasoning_format
    lines = [
        _line("template", f"{source.place}"),
        _line("", f"{len(source.template):,} characters, sha256 {_digest(source.template)[:16]}…"),
        *_of_tools(found, tools),
        *_of_thoughts(found, reasoning),
        "",
        _line("states", ""),
    ]
    for state, ways in _states(tools, reasoning):
        lines += [_line(f"  {state}", way if not at else "") for at, way in enumerate(ways[:1])]
        lines += [_line("", way) for way in ways[1:]]
    lines += ["", _line("examples", "as the template writes them")]
    for name, text in _examples(found).items():
        lines += [f"  {name}", *_block(text)]
    lines += ["", _line("proof", "rendered by the template, read back, compared")]
    for item in found.checks:
        lines += _proved(item)
    lines += ["", _line("sure", f"{found.confidence}. {_how_sure(found)}")]
    lines += [_line("", why.partition(": ")[2]) for why in found.reasons[2:]]
    if whole:
        lines += ["", _line("source", ""), source.template]
    return "\n".join(lines)


def _how_sure(found: DetectedFormats) -> str:
    if not found.renders_messages:
        return SILENT
    return (
        FAILED if found.failed_checks and found.confidence == "partly" else SURE[found.confidence]
    )


def _of_tools(found: DetectedFormats, tools: ToolFormat | None) -> Iterator[str]:
    yield ""
    yield _line("calls", f"{found.tools}{' (generic)' if found.generic else ''}")
    yield _line("", found.reasons[0].partition(": ")[2])
    if found.equivalent:
        yield _line("", f"just as well: {', '.join(found.equivalent)}")
    if tools is not None and _marks(tools, None):
        yield _line("", f"marks: {_quoted(_marks(tools, None))}")
    if not found.renders_tools:
        yield _line("", "the template has no place for definitions of tools")


def _of_thoughts(found: DetectedFormats, reasoning: ReasoningFormat | None) -> Iterator[str]:
    thinking = found.reasoning_controls
    yield ""
    yield _line("thoughts", found.reasoning or "none")
    yield _line("", found.reasons[1].partition(": ")[2])
    if reasoning is not None and _marks(None, reasoning):
        yield _line("", f"marks: {_quoted(_marks(None, reasoning))}")
    for switch in thinking.switches:
        yield _line("", f"switch: {switch.name} (on: {switch.on!r}, off: {switch.off!r})")
    if thinking.effort:
        yield _line("", f"effort: {thinking.effort} ({', '.join(thinking.efforts)})")
    if thinking.budget:
        yield _line("", f"budget: {thinking.budget}")
    for way, begin in thinking.answer_positions.items():
        where = f"begins {BEGINS[begin]}, after" if reasoning is not None else "is opened with"
        opening = json.dumps(thinking.openings[way], ensure_ascii=False)
        yield _line("", f"{way}: an answer {where} {opening}")
    for word, begin in thinking.system_words.items():
        yield _line("", f"{word} in a system message: {BEGINS[begin]}")


def _proved(item: RoundTripCheck) -> Iterator[str]:
    yield f"  {item.name.ljust(28)}{STATUS[item.status]}"
    if item.status in ("failed", "otherwise"):
        yield f"    went in:   {_said(item.expected)}"
        yield f"    came back: {_said(item.parsed)}"
        yield "    written:"
        yield from _block(item.text)


def _said(said: ProbeTurn | None) -> str:
    if said is None:
        return "nothing"
    shown = {
        "text": said.text,
        "thoughts": said.reasoning,
        "calls": [[call.name, call.arguments] for call in said.calls],
    }
    kept = {name: value for name, value in shown.items() if value}
    return json.dumps(kept, ensure_ascii=False)


def _line(head: str, text: str) -> str:
    return (head.ljust(INDENT) + text).rstrip()


def _block(text: str) -> list[str]:
    return [f"    | {line}".rstrip() for line in text.splitlines() or [""]]


def _quoted(marks: Sequence[str]) -> str:
    return " ".join(json.dumps(mark, ensure_ascii=False) for mark in marks)


# The table of formats


def format_table() -> str:
    """All formats, with their other names and an example."""
    lines = ["TOOL FORMATS"]
    for tools in tool_formats().values():
        lines += _entry(tools.name, tools.models, tools.aliases, tools.example)
    lines += ["", "REASONING FORMATS"]
    for reasoning in reasoning_formats().values():
        lines += _entry(reasoning.name, reasoning.models, reasoning.aliases, reasoning.example)
    return "\n".join(lines)


def _entry(name: str, models: str, aliases: Container[str], example: str) -> list[str]:
    others = ", ".join(aliases) if isinstance(aliases, Sequence | dict) else ""
    also = f" (also {others})" if others else ""
    return [f"{name}{also}", f"    {models}", f"    {json.dumps(example, ensure_ascii=False)}"]
