"""The adapter between cases of output formats and the public library.

`parse(case, chunks)` is what `../shared/exam/score.py` calls. A case says which formats it is in,
where it begins, and what was declared; it is known by nothing else.
"""

from __future__ import annotations

from typing import Any

from dragoman.formats import reasoning_formats
from dragoman.output.library import OutputParser, ParserPolicy
from dragoman.output.spec import ReasoningFormat, ToolFormat


def parse(case: dict[str, Any], chunks: list[str]) -> dict[str, Any]:
    """The answer of our parser to a case, given in these pieces."""
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
        reasoning = None  # the text of these cases has its thoughts removed
    if api == "reasoning":
        tools = None
    if request.get("reasoning_format") == "none":
        reasoning = None
    if "generic_tags" in (tools, reasoning):
        tools, reasoning = None, tags(request)
    given = request.get("chat_template_kwargs") or {}
    whole = "end_of_turn" in case or bool(given.get("force_nonempty_content"))
    return OutputParser(
        tools,
        reasoning,
        tools=case.get("tools"),
        prompt=case.get("prompt_prefix"),
        inside=begins_inside(case),
        policy=ParserPolicy(
            # what a case declares is there for the types: many call what they did not declare
            undeclared="text" if request.get("tool_choice") == "none" else "accept",
            in_reasoning="accept" if api == "reasoning" else "auto",
            # a turn that is known to be whole must have said something
            unclosed_reasoning="repeat" if whole else "leave",
            hidden=("<bos>", "<eos>") if request.get("skip_special_tokens") else (),
        ),
    )


def tags(request: dict[str, Any]) -> ReasoningFormat | None:
    """A reasoning format of two marks that the case brings along."""
    if "reasoning_start" not in request:
        return None
    return ReasoningFormat(
        name="generic_tags",
        models="any",
        example="",
        open=(request["reasoning_start"],),
        close=(request["reasoning_end"],),
    )


def begins_inside(case: dict[str, Any]) -> bool | None:
    """What the case says of its prompt, else what its switch for thinking or its parser imply."""
    if case.get("api") == "tool":
        return False
    said = case.get("start_in_reasoning")
    if said is not None or case.get("prompt_prefix") is not None:
        return None if said is None else bool(said)
    given = (case.get("request") or {}).get("chat_template_kwargs") or {}
    for switch in ("thinking", "enable_thinking", "thinking_mode", "reasoning_effort"):
        if switch in given:
            return given[switch] not in (False, "disabled", "no_think", "none")
    name = str(case.get("parser", "")).lower().lstrip("_").removeprefix("delegating")
    fitting = [alias for alias in ALIASES if name.startswith(alias)]
    return ALIASES[max(fitting, key=len)] if fitting else None


ALIASES = {
    alias.replace("_", "").replace("-", ""): inside
    for one in reasoning_formats().values()
    for alias, inside in one.aliases.items()
}
