"""What a chat template can take, found by trying.

Templates do not say which conversations they accept: some refuse a system message, some drop every
one but the first, some refuse two user messages in a row, some never write tool results. So small
made-up conversations are rendered when a template is first seen, with odd words in them, and what
counts is whether those words arrive in the prompt. `conversation` then changes a conversation only
as far as this template needs it.
"""

from __future__ import annotations

import json
import re
import time
from functools import lru_cache
from itertools import product
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import TemplateRejected
from dragoman.prompt.special_tokens import MarkedText, SpecialTokenGuard
from dragoman.prompt.template.budget import RenderBudget, RenderLimits
from dragoman.prompt.template.template import ChatTemplate, TemplateFacts, compile_template
from dragoman.types import Json

TemplateMessage: TypeAlias = dict[str, Json]  # a message as templates see it
ArgumentsForm: TypeAlias = Literal["dict", "text"]
NoToolsForm: TypeAlias = Literal["null", "absent", "empty"]
ContentForm: TypeAlias = Literal["empty", "absent", "null"]

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
PROBE_LIMITS = RenderLimits(seconds=0.5, steps=200_000)
PROBE_TOKENS = {
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
}

NO_GUARD = SpecialTokenGuard(())

LONG_ID = "call_zq0123456789"
SHORT_ID = "zqcall001"
SCHEMA = {
    "type": "object",
    "properties": {"zqkey": {"type": "string", "description": "zqparameter"}},
    "required": ["zqkey"],
}
TOOL = {
    "type": "function",
    "function": {"name": "zqtool", "description": "zqabout", "parameters": SCHEMA},
}
BARE_TOOL = {"type": "function", "function": {"name": "zqtool", "parameters": SCHEMA}}
TEXT_PART = re.compile(r"""["']type["']: *["']text["']""")
JSON_ARGUMENTS = '{"zqkey": "zqvalue"}'
PYTHON_ARGUMENTS = "{'zqkey': 'zqvalue'}"


class TemplateCapabilities(Struct, frozen=True, kw_only=True):
    """What a template takes as it is. The defaults are those of one that takes everything."""

    renders: bool = True  # a plain message from a user comes through
    part_roles: frozenset[str] = frozenset()  # roles whose content must be a list of parts
    system: bool = True
    system_twice: bool = True  # two system messages at the beginning
    system_later: bool = True  # one in the middle
    developer: bool = False  # knows the role by name
    user_twice: bool = True  # two in a row
    assistant_twice: bool = True
    assistant_first: bool = True
    without_user: bool = True
    tools_rendered: bool = False
    no_tools: NoToolsForm = "null"  # how to say that there are none
    tools_need_system: bool = False  # they are only written next to a system message
    tools_need_user: bool = False
    bare_tools: bool = True  # a tool without a description
    tool_calls_rendered: bool = False
    tool_results_rendered: bool = False
    calls_need_tools: bool = False  # calls are only written when there are tools
    content_with_calls: bool = True  # text and calls in one turn
    reasoning_with_both: bool = True  # and reasoning, too
    parallel_calls: bool = True  # several calls in one turn
    lone_results: bool = True  # a result without a call before it
    user_after_result: bool = True
    filler: str = ""  # content of a turn that is only there because one must be
    raw_arguments: bool = True  # arguments that are no JSON
    arguments: ArgumentsForm = "dict"
    call_content: ContentForm = "empty"  # content of a turn of calls only
    short_ids: bool = False  # ids of calls must be nine letters and digits
    tiny_ids: bool = True  # they may be shorter than that
    reasoning_fields: tuple[str, ...] = ("reasoning_content",)  # fields that carry reasoning
    reasoning_parts: bool = False  # reasoning is a part of the content, of type `thinking`
    reasoning_end: str | None = None  # where the template cuts reasoning off a content


class CallShape(Struct, frozen=True):
    """One way to write down a turn of tool calls."""

    arguments: ArgumentsForm = "dict"
    content: ContentForm = "empty"
    short_ids: bool = False


NO_TOOLS_FORMS: tuple[NoToolsForm, ...] = ("null", "absent", "empty")
ARGUMENTS_FORMS: tuple[ArgumentsForm, ...] = ("dict", "text")
CONTENT_FORMS: tuple[ContentForm, ...] = ("empty", "absent", "null")
CALL_SHAPES = [
    CallShape(arguments, content, short)
    for short, arguments, content in product((False, True), ARGUMENTS_FORMS, CONTENT_FORMS)
]


@lru_cache(maxsize=64)
def probe_capabilities(source: str) -> TemplateCapabilities:
    """The abilities of a template, tried out once."""
    return CapabilityProbe(compile_template(source)).probe_all()


class CapabilityProbe:
    """Renders made-up conversations and looks for the words that were in them."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._parts: set[str] = set()
        self._tools: list[Any] | None = None
        self._no_tools: NoToolsForm = "null"
        self._limits = PROBE_LIMITS  # for all attempts together

    def render(self, turns: list[TemplateMessage], tools: list[Any] | None = None) -> str | None:
        variables = PROBE_TOKENS | {
            "messages": turns,
            "datetime": "zqdate",
            "add_generation_prompt": True,
            **make_tools_variable(tools or self._tools, self._no_tools, self._template.facts),
        }
        given = MarkedText(NO_GUARD)
        variables = given.mark_tree(variables)
        started = time.thread_time()
        try:
            return self._template.render(
                variables, RenderBudget(self._limits, known_sizes=given.known_sizes)
            )
        except TemplateRejected:
            return None
        finally:
            left = self._limits.seconds - (time.thread_time() - started)
            self._limits = replace(self._limits, seconds=left)

    def finds(
        self, turns: list[TemplateMessage], *words: str, tools: list[Any] | None = None
    ) -> bool:
        """Do all the words arrive, in this order?"""
        text = self.render(turns, tools)
        at = 0
        for word in words:
            at = -1 if text is None or at < 0 else text.find(word, at)
        return text is not None and at >= 0

    def make_message(self, role: str, word: str, **more: Any) -> TemplateMessage:
        content: Any = [{"type": "text", "text": word}] if role in self._parts else word
        return {"role": role, "content": content, **more}

    def _probe_role(self, role: str, turns: list[str], *words: str) -> bool:
        """Does the role come through as text, or else as parts?"""
        for parts in (False, True):
            (self._parts.add if parts else self._parts.discard)(role)
            said = [self.make_message(who, word) for who, word in zip(turns, words, strict=True)]
            text = self.render(said) if parts else ""
            if text is None or TEXT_PART.search(text) is not None:  # a list is written as it is
                continue
            if self.finds(said, *words):
                return True
        self._parts.discard(role)
        return False

    def probe_all(self) -> TemplateCapabilities:
        for self._no_tools in NO_TOOLS_FORMS:
            if self._probe_role("user", ["user"], "zquser"):
                break
        else:
            return TemplateCapabilities(renders=False, tools_rendered=True, **CALLS)
        system = self._probe_role("system", ["system", "user"], "zqsystem", "zquser")
        self._probe_role(
            "assistant", ["user", "assistant", "user"], "zquser", "zqanswer", "zqagain"
        )
        found = self._probe_orders(system)
        found |= self._probe_tools(system) | self._probe_calls()
        facts = self._template.facts
        developer = (
            self.make_message("developer", "zqdeveloper"),
            self.make_message("user", "zquser"),
        )
        return TemplateCapabilities(
            system=system,
            developer="developer" in facts.words and self.finds([*developer], "zqdeveloper"),
            no_tools=self._no_tools,
            reasoning_fields=find_reasoning_fields(facts),
            reasoning_parts=self._probe_reasoning_parts(),
            reasoning_end=self._probe_reasoning_end(),
            part_roles=frozenset(self._parts),
            **found,
        )

    def _probe_tools(self, system: bool) -> dict[str, Any]:
        """Whether tools are written, and what that takes."""
        user, empty = self.make_message("user", "zquser"), self.make_message("system", "")
        alone = self.finds([user], "zqtool", tools=[TOOL])
        framed = not alone and system and self.finds([empty, user], "zqtool", tools=[TOOL])
        if not (alone or framed):
            return {}
        self._tools = [TOOL]
        turns = [empty, user] if framed else [user]
        return {
            "tools_rendered": True,
            "tools_need_system": framed,
            "tools_need_user": system
            and not self.finds([self.make_message("system", "zqfirst")], "zqtool"),
            "bare_tools": self.finds(turns, "zqtool", tools=[BARE_TOOL]),
        }

    def _probe_orders(self, system: bool) -> dict[str, Any]:
        """Which orders of turns are taken."""

        def said(*turns: tuple[str, str]) -> bool:
            return self.finds(
                [self.make_message(*turn) for turn in turns], *(word for _, word in turns)
            )

        first, user, answer = ("system", "zqfirst"), ("user", "zquser"), ("assistant", "zqanswer")
        again, more, later = ("user", "zqagain"), ("assistant", "zqmore"), ("system", "zqlater")
        return {
            "system_twice": said(first, later, user),
            "system_later": said(first, user, answer, later, again),
            "user_twice": said(user, again, answer, ("user", "zqlast")),
            "assistant_twice": said(user, answer, more, again),
            "assistant_first": said(answer, user),
            "without_user": said(first) if system else said(answer),
        }

    def _make_call(self, shape: CallShape, number: int = 1) -> TemplateMessage:
        """A call of the tool; the second one has other words."""
        mark = "" if number == 1 else "b"
        arguments: Any = {"zqkey": f"zqvalue{mark}"}
        if shape.arguments == "text":
            arguments = JSON_ARGUMENTS.replace("zqvalue", f"zqvalue{mark}")
        return {
            "type": "function",
            "id": (SHORT_ID if shape.short_ids else LONG_ID)[:-1] + str(number),
            "function": {"name": "zqcalled", "arguments": arguments},
        }

    def _make_conversation(self, shape: CallShape, calls: int = 1) -> list[TemplateMessage]:
        """A question, calls, and their results."""
        made = [self._make_call(shape, number) for number in range(1, calls + 1)]
        turn: TemplateMessage = {"role": "assistant", "tool_calls": made}
        if shape.content != "absent":
            turn["content"] = "" if shape.content == "empty" else None
        results = [
            self.make_message("tool", f"zqresult{n}", name="zqcalled", tool_call_id=call["id"])
            for n, call in enumerate(made, 1)
        ]
        return [self.make_message("user", "zquser"), turn, *results]

    def _probe_calls(self) -> dict[str, Any]:
        """Whether calls and results are written, and in which shape they must come."""
        for results in (("zqresult1",), ()):
            for shape in CALL_SHAPES:
                turns = self._make_conversation(shape)
                if self.finds(turns, "zqcalled", "zqvalue", *results):
                    return self._probe_call_details(self._prefer_text(shape), bool(results))
        text = self.render(self._make_conversation(CallShape())) or ""
        return {"tool_calls_rendered": False, "tool_results_rendered": "zqresult1" in text}

    def _probe_call_details(self, shape: CallShape, results: bool) -> dict[str, Any]:
        two, one = self._make_conversation(shape, 2), self._make_conversation(shape)
        words = ("zqvalue", "zqvalueb", "zqresult1", "zqresult2")
        both, raw, tiny, full = (self._make_conversation(shape) for _ in range(4))
        both[1] |= {"content": self.make_message("assistant", "zqsaid")["content"]}
        full[1] |= both[1] | dict.fromkeys(find_reasoning_fields(self._template.facts), "zqthought")
        raw[1]["tool_calls"][0]["function"]["arguments"] = "zqraw"
        tiny[1]["tool_calls"][0]["id"] = tiny[2]["tool_call_id"] = "1"
        text = self.render(both) or ""
        tools, self._tools = self._tools, None
        without = self.finds(one, "zqcalled", "zqvalue")
        self._tools = tools
        found: dict[str, Any] = {
            "tool_calls_rendered": True,
            "tool_results_rendered": results,
            "calls_need_tools": not without,
            "content_with_calls": "zqsaid" in text and "zqvalue" in text,
            "thoughts_with_both": "zqsaid" not in text or self.finds(full, "zqsaid"),
            "parallel_calls": self.finds(two, *words) if results else True,
            "raw_arguments": self.finds(raw, "zqraw"),
            "arguments": shape.arguments,
            "call_content": shape.content,
            "short_ids": shape.short_ids,
            "tiny_ids": self.finds(tiny, "zqvalue"),
        }
        return found | (self._probe_results(one) if results else {})

    def _probe_results(self, story: list[TemplateMessage]) -> dict[str, Any]:
        """Where results may stand."""
        asked, _, result = story
        again, empty = self.make_message("user", "zqagain"), self.make_message("assistant", "")
        after = self.finds([*story, again], "zqresult1", "zqagain")
        filled = after or self.finds([*story, empty, again], "zqresult1", "zqagain")
        return {
            "lone_results": self.finds([asked, result, again], "zqresult1", "zqagain"),
            "user_after_result": after,
            "filler": "" if filled else " ",
        }

    def _prefer_text(self, shape: CallShape) -> CallShape:
        """A template that writes a dict the way Python does, but text as it is, wants text."""
        if shape.arguments == "text":
            return shape
        text = CallShape("text", shape.content, shape.short_ids)
        as_dict = self.render(self._make_conversation(shape)) or ""
        as_text = self.render(self._make_conversation(text)) or ""
        at = as_text.find(JSON_ARGUMENTS)
        bare = at > 0 and as_text[at - 1] not in "'\""
        return text if PYTHON_ARGUMENTS in as_dict and bare else shape

    def _probe_reasoning_parts(self) -> bool:
        """Whether reasoning is written that comes as a part, and not if it comes as a field."""
        facts = self._template.facts
        if "thinking" not in facts.words:
            return False
        user, again = self.make_message("user", "zquser"), self.make_message("user", "zqagain")
        fields = self.make_message(
            "assistant", "zqanswer", **dict.fromkeys(find_reasoning_fields(facts), "zqmind")
        )
        thought = {"type": "thinking", "thinking": "zqmind"}
        parts = {"role": "assistant", "content": [thought, {"type": "text", "text": "zqanswer"}]}
        if self.finds([user, fields, again], "zqmind"):
            return False
        text = self.render([user, parts, again]) or ""
        return "zqmind" in text and "zqanswer" in text and TEXT_PART.search(text) is None

    def _probe_reasoning_end(self) -> str | None:
        """The tag up to which the template drops what an earlier answer begins with."""
        for cut in sorted(self._template.facts.separators):
            if "think" not in cut.lower() or cut[1:2] != "/":
                continue
            content = f"{cut.replace('/', '', 1)}zqthought{cut}zqanswer"
            turns = [("user", "zquser"), ("assistant", content), ("user", "zqagain")]
            text = self.render([self.make_message(*turn) for turn in turns])
            if text is not None and "zqanswer" in text and "zqthought" not in text:
                return cut
        return None


CALLS: dict[str, Any] = {"tool_calls_rendered": True, "tool_results_rendered": True}


def make_tools_variable(
    tools: list[Any] | None, none: NoToolsForm, facts: TemplateFacts
) -> dict[str, Any]:
    """The variable `tools`, the way a template wants it when there are none."""
    made: dict[str, Any] = {}
    if "functions" in facts.variables:  # what a few old templates read instead, as text
        functions = [tool["function"] for tool in tools or ()]
        made["functions"] = json.dumps(functions, indent=4, ensure_ascii=False)
    if tools or none != "absent":
        made["tools"] = tools or (None if none == "null" else [])
    return made


def find_reasoning_fields(facts: TemplateFacts) -> tuple[str, ...]:
    """The fields to put reasoning in: the usual one, and others if the template reads them."""
    return tuple(
        name for name in REASONING_FIELDS if name == REASONING_FIELDS[0] or name in facts.words
    )
