"""Parses the cases of an external collection with the public library.

`../shared/exam/score.py` calls `parse(case, chunks)`. A case names its formats and describes where
the answer starts and which tools are declared; nothing else is used to choose a parser.
"""

from __future__ import annotations

from typing import Any

from dragoman.formats import reasoning_formats
from dragoman.output.library import OutputParser, ParserPolicy
from dragoman.output.spec import ReasoningFormat, ToolFormat


def parse(case: dict[str, Any], chunks: list[str]) -> dict[str, Any]:
    """Return the result of our parser for a case whose text is given in these chunks."""
    parser = make_parser(case)
    spans = [span for chunk in chunks for span in parser.feed(chunk)]
    spans += parser.close(truncated=case.get("finished") is False or bool(case.get("is_partial")))
    calls: list[dict[str, str]] = []
    texts = {"text": "", "reasoning": ""}
    for span in spans:
        if span.channel == "tool_name":
            calls.append({"name": span.text, "arguments": ""})
        elif span.channel == "tool_args":
            calls[span.call]["arguments"] += span.text
        else:
            texts[span.channel] += span.text
    return {"content": texts["text"], "reasoning": texts["reasoning"], "tool_calls": calls}


def make_parser(case: dict[str, Any]) -> OutputParser:
    api, request = case.get("api", "unified"), case.get("request") or {}
    tools: str | ToolFormat | None = case.get("format")
    reasoning: str | ReasoningFormat | None = case.get("reasoning_format")
    if api == "tool" and tools is not None:
        reasoning = None  # the text of these cases has no reasoning
    if api == "reasoning":
        tools = None
    if request.get("reasoning_format") == "none":
        reasoning = None
    if "generic_tags" in (tools, reasoning):
        tools, reasoning = None, make_tag_format(request)
    kwargs = request.get("chat_template_kwargs") or {}
    must_have_text = "end_of_turn" in case or bool(kwargs.get("force_nonempty_content"))
    return OutputParser(
        tools,
        reasoning,
        tools=case.get("tools"),
        prompt=case.get("prompt_prefix"),
        inside=starts_inside(case),
        policy=ParserPolicy(
            # tools are declared only for their types: many cases call undeclared tools
            undeclared="text" if request.get("tool_choice") == "none" else "accept",
            in_reasoning="accept" if api == "reasoning" else "auto",
            # a turn that is known to be complete must have text
            unclosed_reasoning="repeat" if must_have_text else "leave",
            hidden=("<bos>", "<eos>") if request.get("skip_special_tokens") else (),
        ),
    )


def make_tag_format(request: dict[str, Any]) -> ReasoningFormat | None:
    """Make a reasoning format from the two markers of a case."""
    if "reasoning_start" not in request:
        return None
    return ReasoningFormat(
        name="generic_tags",
        models="any",
        example="",
        open=(request["reasoning_start"],),
        close=(request["reasoning_end"],),
    )


def starts_inside(case: dict[str, Any]) -> bool | None:
    """Whether the answer starts in reasoning: by the case itself, its switch, or its parser."""
    if case.get("api") == "tool":
        return False
    declared = case.get("start_in_reasoning")
    if declared is not None or case.get("prompt_prefix") is not None:
        return None if declared is None else bool(declared)
    kwargs = (case.get("request") or {}).get("chat_template_kwargs") or {}
    for switch in ("thinking", "enable_thinking", "thinking_mode", "reasoning_effort"):
        if switch in kwargs:
            return kwargs[switch] not in (False, "disabled", "no_think", "none")
    name = str(case.get("parser", "")).lower().lstrip("_").removeprefix("delegating")
    matching = [alias for alias in ALIASES if name.startswith(alias)]
    return ALIASES[max(matching, key=len)] if matching else None


ALIASES = {  # of two spellings the one with underscores counts: these cases name vLLM's classes
    alias.replace("_", "").replace("-", ""): inside
    for reasoning in reasoning_formats().values()
    for alias, inside in sorted(reasoning.aliases.items(), key=lambda item: "_" in item[0])
}
