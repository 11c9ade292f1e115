"""A client that holds a conversation with a scripted model and sends it back in its own form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.events import Completion
from dragoman.grammar.compiler.compiler_pool import CompilerPool
from dragoman.models.loaders.engine import EngineModelOptions, make_engine_model
from dragoman.models.registry import ModelRegistry
from dragoman.pipeline import pipeline
from dragoman.pipeline.admission import Admission
from dragoman.pipeline.plan import Plan
from dragoman.pipeline.services import Services
from dragoman.replay import ReplayService
from dragoman.testing import ByteTokenizer, Reply, ScriptedEngine
from dragoman.types import (
    Chat,
    Job,
    Message,
    Request,
    Sampling,
    Tool,
    ToolCall,
    make_text_content,
)
from tests.support.paths import TESTS

TEMPLATE_DIR = TESTS / "templates"
HARMONY = ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>", "<|return|>")
BRACKETS = ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")

WEATHER = Tool(
    name="weather",
    description="Tells the weather.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    },
)
QUESTION = Message(role="user", content=make_text_content("Is it sunny in Paris?"))


def user(text: str) -> Message:
    return Message(role="user", content=make_text_content(text))


class ModelStyle:
    """A template, its tokens, and how the model writes reasoning and a call."""

    def __init__(
        self, template: str, markup: Sequence[str], stops: Sequence[str], opening: str, answer: str
    ) -> None:
        self.template = template
        self.markup = markup
        self.stops = stops
        self.opening = opening  # the part of the answer that the prompt contains with reasoning on
        self.answer = answer  # reasoning and a call

    def make_tokenizer(self) -> ByteTokenizer:
        tokenizer = ByteTokenizer(markup=self.markup)
        tokenizer.eos_ids = frozenset(tokenizer.specials[stop] for stop in self.stops)
        return tokenizer


CALL = '{"city": "Paris", "days": 2}'
REASONING = "Let me see."
STOPS = ("<|im_end|>",)
CALL_TEXT = f'<tool_call>\n{{"name": "weather", "arguments": {CALL}}}\n</tool_call>'
REASONING_TEXT = f"<think>\n{REASONING}\n</think>\n\n"
STYLES = {
    "tags as text": ModelStyle("thinker", (), STOPS, "<think>\n", REASONING_TEXT + CALL_TEXT),
    "tags as tokens": ModelStyle("thinker", TAGS, STOPS, "<think>\n", REASONING_TEXT + CALL_TEXT),
    "brackets": ModelStyle(
        "brackets",
        BRACKETS,
        STOPS,
        "[THINK]",
        f"[THINK]{REASONING}[/THINK][TOOL_CALLS]weather[ARGS]{CALL}",
    ),
    "channels": ModelStyle(
        "channels",
        HARMONY,
        ("<|call|>", "<|return|>"),
        "<|channel|>analysis<|message|>",
        f"<|channel|>analysis<|message|>{REASONING}<|end|><|start|>assistant to=functions.weather"
        f"<|channel|>commentary json<|message|>{CALL}<|call|>",
    ),
}
TAGGED = STYLES["tags as tokens"]


class ReplayClient:
    """A client that holds a conversation and sends it back in a different form."""

    def __init__(
        self, engine: ScriptedEngine, template: str, replay: ReplayService | None, **fields: Any
    ) -> None:
        self.models = ModelRegistry.from_model(
            make_engine_model(engine, EngineModelOptions(name="scripted", chat_template=template))
        )
        self.services = Services(
            models=self.models, compiler=CompilerPool(), admission=Admission(), replay=replay
        )
        self.engine = engine
        self.fields = {"tools": (WEATHER,)} | fields
        self.messages: list[Message] = []
        self.plan: Plan | None = None
        self.sampling = Sampling()
        self.request: dict[str, Any] = {}

    async def send(self, *messages: Message) -> Message:
        """Send the conversation with these messages, and add the answer to it."""
        self.messages += messages
        answer = (await self.ask())[0]
        self.messages.append(answer)
        return answer

    async def ask(self) -> list[Message]:
        """Send the conversation and return the choices, with other JSON and without reasoning."""
        chat = Chat(messages=tuple(self.messages), **self.fields)
        request = Request(
            store=True, model="scripted", prompts=(chat,), sampling=self.sampling, **self.request
        )
        self.plan = plan = await pipeline.prepare(request, self.services)
        completion = Completion()
        try:
            await pipeline.generate(plan, completion.add)
        finally:
            plan.close()
        return [
            Message(
                role="assistant",
                content=make_text_content(choice.text or None),
                tool_calls=tuple(
                    ToolCall(id=call.id, name=call.name, arguments=rewrite_json(call.arguments))
                    for call in choice.calls
                ),
            )
            for choice in completion.build_choices()
        ]

    @property
    def job(self) -> Job:
        return self.engine.jobs[-1]

    @property
    def prompt(self) -> list[int]:
        assert isinstance(self.job.prompt, list)
        return self.job.prompt

    @property
    def reuse(self) -> Any:
        assert self.plan is not None
        return self.plan.reuse

    def make_result(self, text: str = "sunny") -> Message:
        [call] = self.messages[-1].tool_calls
        return Message(role="tool", content=make_text_content(text), tool_call_id=call.id)


def rewrite_json(arguments: str) -> str:
    """Return the same value as other JSON."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    return json.dumps(dict(reversed(value.items())), indent=1)


def make_engine(style: ModelStyle, *texts: str, **settings: Any) -> ScriptedEngine:
    engine = ScriptedEngine(
        [Reply(text, max_uses=1, chunks="bytes") for text in texts], tokens=True, **settings
    )
    engine.tokenizer = style.make_tokenizer()
    return engine


def read_template(name: str) -> str:
    return (TEMPLATE_DIR / f"{name}.jinja").read_text()


def answer_ids(style: ModelStyle, text: str) -> list[int]:
    """Return the tokens of an answer without the stop token."""
    tokenizer = style.make_tokenizer()
    ids = tokenizer.encode_with_specials(text)
    return ids[:-1] if ids and ids[-1] in tokenizer.eos_ids else ids


def edit(message: Message, **fields: Any) -> Message:
    return msgspec.structs.replace(message, **fields)
