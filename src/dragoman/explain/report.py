"""Reports the output formats of a model's template, for `dragoman explain`.

The template comes from an installed model, a GGUF file, a Jinja file, a `tokenizer_config.json`, or
a directory that contains one of these. No engine is started.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dragoman.config import Settings
from dragoman.detection import DetectedFormats, ProbeTurn, RoundTripCheck, detect
from dragoman.detection.placeholders import describe_media
from dragoman.detection.sources import TemplateSource, read_template_source, read_text
from dragoman.errors import ModelBroken
from dragoman.output.library import collect_markers
from dragoman.output.spec import GAP, ReasoningFormat, ToolFormat

ANSWER_POSITIONS = {
    "inside": "inside reasoning, which the template opens",
    "closed": "after reasoning, which the template closes",
    "open": "in neither; the model may reason or not",
}
CONFIDENCE = {
    "verified": "Everything that the template renders was parsed back correctly.",
    "partly_verified": "Tool calls were parsed back correctly; "
    "reasoning format read from the template, not verified.",
    "unverified": "No tool call could be rendered and parsed back; "
    "formats read from the template or the special tokens, not verified.",
    "generic": "The template does not render tools: they are described in the system message.",
}
RENDERS_NOTHING = "The template does not render a plain user message, so nothing is known about it."
CHECKS_FAILED = "Some of what the template renders was not parsed back correctly; see the checks."
STATUS = {
    "ok": "ok",
    "failed": "FAILED",
    "rendered_differently": "the template renders it as something else",
    "not_rendered": "the template does not render it",
}
# Realistic words for the made-up ones in the probes of detection.
EXAMPLE_WORDS = {
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
    """Read the template of a model or file named on the command line."""
    path = Path(name)
    if not os.path.exists(path):  # unlike the method, it takes a name of any length
        return _read_model_template(name, settings)
    source = _read_path(path)
    if settings.chat_template and (source is not None or path.suffix == ".json"):
        return _replace_template(source, settings.chat_template)
    if source is None and path.suffix == ".json":
        raise ModelBroken(f"{path.name} has no chat template.")
    return source or _read_model_template(name, settings)


def _read_path(path: Path) -> TemplateSource | None:
    """Read the template of a file or of a model directory, which also says what the model reads."""
    source = read_template_source(path)
    if source is None or not (path / "config.json").is_file():
        return source
    from dragoman.models.catalog import describe_directory

    return dataclasses.replace(source, modalities=describe_directory(path).modalities)


def _replace_template(source: TemplateSource | None, file: str) -> TemplateSource:
    """Use the operator's template instead of the model's own."""
    template = read_text(Path(file))
    if source is None:
        return TemplateSource(template, file)
    return dataclasses.replace(source, template=template, path=file)


def _read_model_template(name: str, settings: Settings) -> TemplateSource:
    from dragoman import runtime
    from dragoman.engines.llamacpp import gguf
    from dragoman.models.loaders.gguf import read_chat_template, read_special_tokens
    from dragoman.models.projectors import list_modalities

    model = runtime.open_catalog(settings, name).added[0]
    override = model.options.chat_template
    if model.kind != "gguf":
        source = _read_path(model.path)
        if override:
            return _replace_template(source, override)
        if source is None:
            raise ModelBroken("The model has no chat template.")
        return source
    header = gguf.read_header(model.path)
    template = read_chat_template(model, header)
    if template is None:
        raise ModelBroken("The model has no chat template.")
    specials, modalities = read_special_tokens(header), list_modalities(model)
    return TemplateSource(template, str(override or model.path), specials, None, modalities)


def make_source(template: str, place: str, special_tokens: Iterable[str]) -> TemplateSource:
    """Make the source of a template that comes from no file."""
    return TemplateSource(template, place, frozenset(special_tokens))


# The report as data, for --json


def build_report(source: TemplateSource) -> dict[str, object]:
    """Return everything that is known about the template as plain data."""
    detected = _detect(source)
    tools, reasoning = detected.tool_format, detected.reasoning_format
    return {
        "verdict": "; ".join(" ".join(line.split()) for line in _make_verdict(detected)),
        "confidence": detected.confidence,
        "template": {
            "from": source.path,
            "sha256": _hash_template(source.template),
            "characters": len(source.template),
            "renders": detected.renders_messages,
            "source": source.template,
        },
        "tools": {
            "format": detected.tools,
            "generic": detected.is_generic,
            "renders_tools": detected.renders_tools,
            "also_matches": list(detected.equivalent),
            "markers": _list_markers(tools, None),
        },
        "reasoning": {
            "format": detected.reasoning,
            "markers": _list_markers(None, reasoning),
            **dataclasses.asdict(detected.reasoning_controls),
        },
        "media": describe_media(source),
        "evidence": list(detected.reasons),
        "states": dict(_list_states(tools, reasoning)),
        "examples": _collect_examples(detected),
        "checks": [_describe_check(check) for check in detected.checks],
    }


def _detect(source: TemplateSource) -> DetectedFormats:
    return detect(source.template, source.vocabulary, source.config)


def _make_verdict(detected: DetectedFormats) -> list[str]:
    """Say in two lines which formats the model uses, and whether that is verified."""
    if not detected.renders_messages:
        return [RENDERS_NOTHING]
    return [f"{topic + ':':<11} {text}" for topic, text in detected.describe().items()]


def _describe_check(check: RoundTripCheck) -> dict[str, object]:
    row: dict[str, object] = {"name": check.name, "status": check.status}
    if check.text:
        row |= {"prompt": check.prompt, "text": check.text}
    if check.status in ("failed", "rendered_differently"):
        row["expected"] = dataclasses.asdict(check.expected)
        row["parsed"] = dataclasses.asdict(check.parsed) if check.parsed else None
    return row


def _hash_template(template: str) -> str:
    return hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest()


def _list_markers(tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> list[str]:
    return sorted(marker.replace(GAP, "") for marker in collect_markers(tools, reasoning))


def _list_states(
    tools: ToolFormat | None, reasoning: ReasoningFormat | None
) -> Iterator[tuple[str, list[str]]]:
    """Yield the states of the parser, with the markers that lead to other states."""
    call_markers = (*tools.section.open, *tools.call.open) if tools else ()
    to_call = [*_list_transitions(call_markers, "call")]
    if tools is not None and (tools.unmarked_starts or tools.unmarked_at_start):
        starts = tools.unmarked_starts or ("a name",)
        to_call += _list_transitions(starts, "call, at the beginning")
    header = (tools and tools.header) or (reasoning and reasoning.header)
    to_header = [*_list_transitions(header.open if header else (), "header")]
    to_reasoning = [*_list_transitions(reasoning.open if reasoning else (), "reasoning")]
    yield "text", [*to_call, *to_reasoning, *to_header]
    if reasoning is not None:
        to_text = [*_list_transitions(reasoning.close, "text")]
        to_text += _list_transitions(reasoning.ended_by, "call")
        yield "reasoning", [*to_text, *to_header]
    if tools is not None:
        yield "call", [*_list_transitions((*tools.call.close, *tools.section.close), "text")]
    if header:
        yield "header", [f"{pattern or 'else'} → {channel}" for pattern, channel in header.routes]


def _list_transitions(markers: Sequence[str], state: str) -> Iterator[str]:
    for marker in markers:
        if marker:
            yield f"{marker.replace(GAP, '')} → {state}"


def _collect_examples(detected: DetectedFormats) -> dict[str, str]:
    """Return one example of each kind of turn, as the template renders it."""
    examples: dict[str, str] = {}
    kinds: set[tuple[bool, bool, int]] = set()
    for check in detected.checks:
        turn = check.expected
        kind = (bool(turn.text), bool(turn.reasoning), len(turn.calls))
        if check.text and kind not in kinds:
            kinds.add(kind)
            examples[check.name] = _replace_probe_words(check.text)
    if detected.tool_format is not None and not any(calls for _, _, calls in kinds):
        examples["a call, which the template itself never renders"] = detected.tool_format.example
    if detected.reasoning_format is not None and not any(reasons for _, reasons, _ in kinds):
        example = detected.reasoning_format.example
        examples["reasoning, which the template itself never renders"] = example
    return examples


def _replace_probe_words(text: str) -> str:
    for probe_word, word in EXAMPLE_WORDS.items():
        text = text.replace(probe_word, word)
    return text


# The report as text


def format_report(source: TemplateSource, with_source: bool = False) -> str:
    """Return the report as text, the verdict first; `with_source` adds the template itself."""
    detected = _detect(source)
    tools, reasoning = detected.tool_format, detected.reasoning_format
    digest = _hash_template(source.template)[:16]
    lines = [
        *_make_verdict(detected),
        "",
        _format_line("evidence", _explain_confidence(detected)),
        *[_format_line("", _strip_topic(reason)) for reason in detected.reasons[2:]],
        "",
        _format_line("template", source.path),
        _format_line("", f"{len(source.template):,} characters, sha256 {digest}…"),
        *_format_tools(detected, tools),
        *_format_reasoning(detected, reasoning),
        *_format_media(source),
        "",
        _format_line("states", ""),
    ]
    for state, transitions in _list_states(tools, reasoning):
        heads = [f"  {state}", *[""] * len(transitions)]
        lines += [_format_line(*row) for row in zip(heads, transitions, strict=False)]
    lines += ["", _format_line("examples", "as the template renders them")]
    for name, text in _collect_examples(detected).items():
        lines += [f"  {name}", *_format_block(text)]
    lines += ["", _format_line("checks", "rendered by the template, parsed back, compared")]
    for check in detected.checks:
        lines += _format_check(check)
    if with_source:
        lines += ["", _format_line("source", ""), source.template]
    return "\n".join(lines)


def _explain_confidence(detected: DetectedFormats) -> str:
    if not detected.renders_messages:
        return RENDERS_NOTHING
    if detected.failed_checks and detected.confidence == "partly_verified":
        return CHECKS_FAILED
    return CONFIDENCE[detected.confidence]


def _format_tools(detected: DetectedFormats, tools: ToolFormat | None) -> Iterator[str]:
    yield ""
    yield _format_line("tools", f"{detected.tools}{' (generic)' if detected.is_generic else ''}")
    yield _format_line("", _strip_topic(detected.reasons[0]))
    if detected.equivalent:
        yield _format_line("", f"also matches: {', '.join(detected.equivalent)}")
    if tools is not None and (markers := _list_markers(tools, None)):
        yield _format_line("", f"markers: {_quote(markers)}")
    if not detected.renders_tools:
        yield _format_line("", "the template does not render tool definitions")


def _format_media(source: TemplateSource) -> Iterator[str]:
    if source.modalities != ("text",):
        yield from ("", _format_line("reads", ", ".join(source.modalities)))
        yield from (_format_line("", text) for text in describe_media(source)["placeholders"])


def _format_reasoning(
    detected: DetectedFormats, reasoning: ReasoningFormat | None
) -> Iterator[str]:
    controls = detected.reasoning_controls
    yield ""
    yield _format_line("reasoning", detected.reasoning or "none")
    yield _format_line("", _strip_topic(detected.reasons[1]))
    if reasoning is not None and (markers := _list_markers(None, reasoning)):
        yield _format_line("", f"markers: {_quote(markers)}")
    for switch in controls.switches:
        yield _format_line("", f"switch: {switch.name} (on: {switch.on!r}, off: {switch.off!r})")
    if controls.effort:
        yield _format_line("", f"effort: {controls.effort} ({', '.join(controls.efforts)})")
    if controls.budget:
        yield _format_line("", f"budget: {controls.budget}")
    for mode, position in controls.answer_positions.items():
        start = "is opened with"
        if reasoning is not None:
            start = f"begins {ANSWER_POSITIONS[position]}, after"
        opening = json.dumps(controls.openings[mode], ensure_ascii=False)
        yield _format_line("", f"{mode}: an answer {start} {opening}")
    for word, position in controls.system_words.items():
        yield _format_line("", f"{word} in a system message: {ANSWER_POSITIONS[position]}")


def _strip_topic(reason: str) -> str:
    """Return a reason without the topic before its colon."""
    return reason.partition(": ")[2]


def _format_check(check: RoundTripCheck) -> Iterator[str]:
    yield f"  {check.name.ljust(28)}{STATUS[check.status]}"
    if check.status in ("failed", "rendered_differently"):
        yield f"    expected: {_format_turn(check.expected)}"
        yield f"    parsed:   {_format_turn(check.parsed)}"
        yield "    rendered:"
        yield from _format_block(check.text)


def _format_turn(turn: ProbeTurn | None) -> str:
    if turn is None:
        return "nothing"
    fields = {
        "text": turn.text,
        "reasoning": turn.reasoning,
        "calls": [[call.name, call.arguments] for call in turn.calls],
    }
    return json.dumps({name: value for name, value in fields.items() if value}, ensure_ascii=False)


def _format_line(head: str, text: str) -> str:
    return (head.ljust(INDENT) + text).rstrip()


def _format_block(text: str) -> list[str]:
    return [f"    | {line}".rstrip() for line in text.splitlines() or [""]]


def _quote(markers: Sequence[str]) -> str:
    return " ".join(json.dumps(marker, ensure_ascii=False) for marker in markers)
