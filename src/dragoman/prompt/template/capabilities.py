"""Finds what a chat template accepts, by rendering probe conversations.

Templates do not declare which conversations they accept: some reject a system message, some drop
every one but the first, some reject two user messages in a row, some never write tool results. So
when a template is first used, small conversations with unusual words are rendered, and the prompt
is searched for those words. `conversation` then changes a conversation only as far as this template
needs it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import TemplateRejected
from dragoman.prompt.special_tokens import MarkedText, SpecialTokenGuard
from dragoman.prompt.template.budget import RenderBudget, RenderLimits
from dragoman.prompt.template.template import ChatTemplate, TemplateFacts, compile_template
from dragoman.types import Json

TemplateMessage: TypeAlias = dict[str, Json]  # a message as templates see it
TemplateTool: TypeAlias = dict[str, Json]  # a tool as templates see it
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
TOOL: TemplateTool = {
    "type": "function",
    "function": {"name": "zqtool", "description": "zqabout", "parameters": SCHEMA},
}
BARE_TOOL: TemplateTool = {
    "type": "function",
    "function": {"name": "zqtool", "parameters": SCHEMA},
}
TEXT_PART = re.compile(r"""["']type["']: *["']text["']""")
JSON_ARGUMENTS = '{"zqkey": "zqvalue"}'
PYTHON_ARGUMENTS = "{'zqkey': 'zqvalue'}"


class TemplateCapabilities(Struct, frozen=True, kw_only=True):
    """What a template accepts unchanged. By default, it accepts all messages and no tools."""

    renders: bool = True  # a plain user message appears in the prompt
    part_roles: frozenset[str] = frozenset()  # roles whose content must be a list of parts
    system: bool = True
    system_twice: bool = True  # two system messages at the beginning
    system_later: bool = True  # a system message in the middle
    developer: bool = False  # the role `developer`
    user_twice: bool = True  # two in a row
    assistant_twice: bool = True
    assistant_first: bool = True
    without_user: bool = True
    tools_rendered: bool = False
    no_tools: NoToolsForm = "null"  # the value of `tools` when there are none
    tools_need_system: bool = False  # tools are only written next to a system message
    tools_need_user: bool = False
    bare_tools: bool = True  # a tool without a description
    tool_calls_rendered: bool = False
    tool_results_rendered: bool = False
    calls_need_tools: bool = False  # calls are only written when there are tools
    content_with_calls: bool = True  # text and calls in one turn
    reasoning_with_both: bool = True  # reasoning beside text and calls
    parallel_calls: bool = True  # several calls in one turn
    lone_results: bool = True  # a result without a call before it
    user_after_result: bool = True
    filler: str = ""  # content of a turn that is only there because the template requires one
    raw_arguments: bool = True  # arguments that are not JSON
    arguments: ArgumentsForm = "dict"
    call_content: ContentForm = "empty"  # content of a turn that has only calls
    short_ids: bool = False  # call ids must be nine letters and digits
    tiny_ids: bool = True  # call ids may be shorter than that
    reasoning_fields: tuple[str, ...] = ("reasoning_content",)  # fields that carry reasoning
    reasoning_parts: bool = False  # reasoning is a part of the content, of type `thinking`
    reasoning_end: str | None = None  # where the template cuts reasoning off a content


class CallShape(Struct, frozen=True):
    """One form in which to pass a turn of tool calls."""

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
    """Probe a template; the result is cached."""
    return CapabilityProbe(compile_template(source)).probe_all()


class CapabilityProbe:
    """Renders probe conversations and looks for their words in the prompt."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._part_roles: set[str] = set()
        self._tools: list[TemplateTool] | None = None
        self._no_tools: NoToolsForm = "null"
        self._limits = PROBE_LIMITS  # for all renderings together

    def render(
        self, messages: list[TemplateMessage], tools: list[TemplateTool] | None = None
    ) -> str | None:
        variables: dict[str, Json] = PROBE_TOKENS | {
            "messages": messages,
            "datetime": "zqdate",
            "add_generation_prompt": True,
            **make_tools_variable(tools or self._tools, self._no_tools, self._template.facts),
        }
        marked = MarkedText(NO_GUARD)
        variables = marked.mark_tree(variables)
        started = time.thread_time()
        try:
            budget = RenderBudget(self._limits, known_sizes=marked.known_sizes)
            return self._template.render(variables, budget)
        except TemplateRejected:
            return None
        finally:
            left = self._limits.seconds - (time.thread_time() - started)
            self._limits = replace(self._limits, seconds=left)

    def renders_words(
        self, messages: list[TemplateMessage], *words: str, tools: list[TemplateTool] | None = None
    ) -> bool:
        """Whether all the words appear in the prompt, in this order."""
        text = self.render(messages, tools)
        position = 0
        for word in words:
            position = -1 if text is None or position < 0 else text.find(word, position)
        return text is not None and position >= 0

    def make_message(self, role: str, word: str, **fields: Json) -> TemplateMessage:
        as_parts = role in self._part_roles
        content: Json = [{"type": "text", "text": word}] if as_parts else word
        return {"role": role, "content": content, **fields}

    def _probe_role(self, role: str, roles: list[str], *words: str) -> bool:
        """Whether a role is rendered, with text as its content or else with a list of parts."""
        for as_parts in (False, True):
            (self._part_roles.add if as_parts else self._part_roles.discard)(role)
            messages = [self.make_message(*message) for message in zip(roles, words, strict=True)]
            text = self.render(messages) if as_parts else ""
            if text is None or TEXT_PART.search(text) is not None:  # the list itself is written
                continue
            if self.renders_words(messages, *words):
                return True
        self._part_roles.discard(role)
        return False

    def probe_all(self) -> TemplateCapabilities:
        for self._no_tools in NO_TOOLS_FORMS:
            if self._probe_role("user", ["user"], "zquser"):
                break
        else:
            return TemplateCapabilities(
                renders=False,
                tools_rendered=True,
                tool_calls_rendered=True,
                tool_results_rendered=True,
            )
        system = self._probe_role("system", ["system", "user"], "zqsystem", "zquser")
        roles = ["user", "assistant", "user"]
        self._probe_role("assistant", roles, "zquser", "zqanswer", "zqagain")
        facts, capabilities = self._template.facts, TemplateCapabilities(system=system)
        capabilities = self._probe_orders(capabilities)
        capabilities = self._probe_tools(capabilities)
        capabilities = self._probe_calls(capabilities)
        messages = [
            self.make_message("developer", "zqdeveloper"),
            self.make_message("user", "zquser"),
        ]
        return replace(
            capabilities,
            developer="developer" in facts.words and self.renders_words(messages, "zqdeveloper"),
            no_tools=self._no_tools,
            reasoning_fields=find_reasoning_fields(facts),
            reasoning_parts=self._probe_reasoning_parts(),
            reasoning_end=self._probe_reasoning_end(),
            part_roles=frozenset(self._part_roles),
        )

    def _probe_tools(self, capabilities: TemplateCapabilities) -> TemplateCapabilities:
        """Find out whether the template writes tools, and what it needs for that."""
        system = capabilities.system
        user, empty = self.make_message("user", "zquser"), self.make_message("system", "")
        alone = self.renders_words([user], "zqtool", tools=[TOOL])
        with_system = (
            not alone and system and self.renders_words([empty, user], "zqtool", tools=[TOOL])
        )
        if not (alone or with_system):
            return capabilities
        self._tools = [TOOL]
        no_user = [self.make_message("system", "zqfirst")]
        messages = [empty, user] if with_system else [user]
        return replace(
            capabilities,
            tools_rendered=True,
            tools_need_system=with_system,
            tools_need_user=system and not self.renders_words(no_user, "zqtool"),
            bare_tools=self.renders_words(messages, "zqtool", tools=[BARE_TOOL]),
        )

    def _probe_orders(self, capabilities: TemplateCapabilities) -> TemplateCapabilities:
        """Find out in which orders roles may follow each other."""

        def accepts(*messages: tuple[str, str]) -> bool:
            words = [word for _, word in messages]
            return self.renders_words([self.make_message(*message) for message in messages], *words)

        first, user, answer = ("system", "zqfirst"), ("user", "zquser"), ("assistant", "zqanswer")
        again, more, later = ("user", "zqagain"), ("assistant", "zqmore"), ("system", "zqlater")
        return replace(
            capabilities,
            system_twice=accepts(first, later, user),
            system_later=accepts(first, user, answer, later, again),
            user_twice=accepts(user, again, answer, ("user", "zqlast")),
            assistant_twice=accepts(user, answer, more, again),
            assistant_first=accepts(answer, user),
            without_user=accepts(first) if capabilities.system else accepts(answer),
        )

    def _make_call(self, shape: CallShape, number: int = 1) -> Json:
        """Make a call of the tool; the second call has other words."""
        suffix = "" if number == 1 else "b"
        arguments: Json = {"zqkey": f"zqvalue{suffix}"}
        if shape.arguments == "text":
            arguments = JSON_ARGUMENTS.replace("zqvalue", f"zqvalue{suffix}")
        return {
            "type": "function",
            "id": (SHORT_ID if shape.short_ids else LONG_ID)[:-1] + str(number),
            "function": {"name": "zqcalled", "arguments": arguments},
        }

    def _make_conversation(self, shape: CallShape, count: int = 1) -> list[TemplateMessage]:
        """Make a question, a turn of calls, and their results."""
        calls = [self._make_call(shape, number) for number in range(1, count + 1)]
        turn: TemplateMessage = {"role": "assistant", "tool_calls": calls}
        if shape.content != "absent":
            turn["content"] = "" if shape.content == "empty" else None
        results = [
            self.make_message("tool", f"zqresult{n}", name="zqcalled", tool_call_id=call["id"])
            for n, call in enumerate(calls, 1)
        ]
        return [self.make_message("user", "zquser"), turn, *results]

    def _probe_calls(self, capabilities: TemplateCapabilities) -> TemplateCapabilities:
        """Find out whether the template writes calls and results, and which form they must have."""
        for results in (("zqresult1",), ()):
            for shape in CALL_SHAPES:
                messages = self._make_conversation(shape)
                if self.renders_words(messages, "zqcalled", "zqvalue", *results):
                    shape = self._prefer_text(shape)
                    return self._probe_call_details(capabilities, shape, bool(results))
        text = self.render(self._make_conversation(CallShape())) or ""
        return replace(capabilities, tool_results_rendered="zqresult1" in text)

    def _probe_call_details(
        self, capabilities: TemplateCapabilities, shape: CallShape, results: bool
    ) -> TemplateCapabilities:
        two, one = self._make_conversation(shape, 2), self._make_conversation(shape)
        words = ("zqvalue", "zqvalueb", "zqresult1", "zqresult2")
        with_text, raw, tiny, full = (self._make_conversation(shape) for _ in range(4))
        reasoning_fields = find_reasoning_fields(self._template.facts)
        with_text[1] |= {"content": self.make_message("assistant", "zqtext")["content"]}
        full[1] |= with_text[1] | dict.fromkeys(reasoning_fields, "zqreasoning")
        raw[1]["tool_calls"][0]["function"]["arguments"] = "zqraw"
        tiny[1]["tool_calls"][0]["id"] = tiny[2]["tool_call_id"] = "1"
        text = self.render(with_text) or ""
        tools, self._tools = self._tools, None
        without_tools = self.renders_words(one, "zqcalled", "zqvalue")
        self._tools = tools
        capabilities = replace(
            capabilities,
            tool_calls_rendered=True,
            tool_results_rendered=results,
            calls_need_tools=not without_tools,
            content_with_calls="zqtext" in text and "zqvalue" in text,
            reasoning_with_both="zqtext" not in text or self.renders_words(full, "zqtext"),
            parallel_calls=self.renders_words(two, *words) if results else True,
            raw_arguments=self.renders_words(raw, "zqraw"),
            arguments=shape.arguments,
            call_content=shape.content,
            short_ids=shape.short_ids,
            tiny_ids=self.renders_words(tiny, "zqvalue"),
        )
        return self._probe_results(capabilities, one) if results else capabilities

    def _probe_results(
        self, capabilities: TemplateCapabilities, messages: Sequence[TemplateMessage]
    ) -> TemplateCapabilities:
        """Find out where the template accepts results."""
        question, _, result = messages
        again, empty = self.make_message("user", "zqagain"), self.make_message("assistant", "")
        after = self.renders_words([*messages, again], "zqresult1", "zqagain")
        filled = after or self.renders_words([*messages, empty, again], "zqresult1", "zqagain")
        return replace(
            capabilities,
            lone_results=self.renders_words([question, result, again], "zqresult1", "zqagain"),
            user_after_result=after,
            filler="" if filled else " ",
        )

    def _prefer_text(self, shape: CallShape) -> CallShape:
        """Choose text if the template writes a dict as Python does, but text as it is."""
        if shape.arguments == "text":
            return shape
        text_shape = CallShape("text", shape.content, shape.short_ids)
        with_dict = self.render(self._make_conversation(shape)) or ""
        with_text = self.render(self._make_conversation(text_shape)) or ""
        start = with_text.find(JSON_ARGUMENTS)
        unquoted = start > 0 and with_text[start - 1] not in "'\""
        return text_shape if PYTHON_ARGUMENTS in with_dict and unquoted else shape

    def _probe_reasoning_parts(self) -> bool:
        """Whether reasoning is rendered as a part of the content, but not as a field."""
        facts = self._template.facts
        if "thinking" not in facts.words:
            return False
        user, again = self.make_message("user", "zquser"), self.make_message("user", "zqagain")
        fields = dict.fromkeys(find_reasoning_fields(facts), "zqreasoning")
        with_fields = self.make_message("assistant", "zqanswer", **fields)
        parts = [
            {"type": "thinking", "thinking": "zqreasoning"},
            {"type": "text", "text": "zqanswer"},
        ]
        with_parts = {"role": "assistant", "content": parts}
        if self.renders_words([user, with_fields, again], "zqreasoning"):
            return False
        text = self.render([user, with_parts, again]) or ""
        return "zqreasoning" in text and "zqanswer" in text and TEXT_PART.search(text) is None

    def _probe_reasoning_end(self) -> str | None:
        """Return the tag up to which the template drops the beginning of an earlier answer."""
        for tag in sorted(self._template.facts.separators):
            if "think" not in tag.lower() or tag[1:2] != "/":
                continue
            content = f"{tag.replace('/', '', 1)}zqreasoning{tag}zqanswer"
            messages = [("user", "zquser"), ("assistant", content), ("user", "zqagain")]
            text = self.render([self.make_message(*message) for message in messages])
            if text is not None and "zqanswer" in text and "zqreasoning" not in text:
                return tag
        return None


def make_tools_variable(
    tools: list[TemplateTool] | None, no_tools: NoToolsForm, facts: TemplateFacts
) -> dict[str, Json]:
    """Make the variable `tools`, in the form that the template expects when there are none."""
    variables: dict[str, Json] = {}
    if "functions" in facts.variables:  # a few old templates read this instead, as text
        functions = [tool["function"] for tool in tools or ()]
        variables["functions"] = json.dumps(functions, indent=4, ensure_ascii=False)
    if tools or no_tools != "absent":
        variables["tools"] = tools or (None if no_tools == "null" else [])
    return variables


def find_reasoning_fields(facts: TemplateFacts) -> tuple[str, ...]:
    """Return the fields that carry reasoning: the usual one, and others the template reads."""
    usual = REASONING_FIELDS[0]
    return tuple(name for name in REASONING_FIELDS if name == usual or name in facts.words)
