"""The reasoning budget: the answer is the model's own, and every token of it is counted."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from dragoman.testing import ByteTokenizer, Reply, ScriptedEngine
from dragoman.types import Capabilities, Job, Step
from tests.support.scripted_chats import THINKER, post
from tests.support.serving import RunningServer, parse_events, serve_scripted

pytestmark = pytest.mark.slow

ANSWER = Reply("The answer.")


def make_script(*pieces: Any) -> list[Reply]:
    """Script a model that writes the pieces, one token each, and the answer when interrupted."""
    return [Reply("".join(pieces), pieces=pieces, max_uses=1), ANSWER]


def post_for_message(server: RunningServer, **fields: Any) -> dict[str, Any]:
    content: dict[str, Any] = post(server, "it", **fields).json()["choices"][0]["message"]
    return content


def test_model_that_reasons_again_after_every_interruption_may_continue() -> None:
    engine = ScriptedEngine("<think>hm</think>Yes.")
    with serve_scripted(engine, chat_template=THINKER) as server:
        message = post_for_message(server, thinking_budget=0)
    assert message["content"] == "Yes."
    assert len(engine.jobs) <= 4


@pytest.mark.parametrize(
    ("pieces", "fields"),
    [
        (("<think>one", " two</think>", "Yes."), {}),
        (("<think>one", " two</", "think>", "Yes."), {}),
        (("<think>one", " two</", "th", "ink>Y", "es."), {}),
        (("<think>one", " two</", "think>", "Yes."), {"stop": ["</thinker>"]}),
    ],
)
def test_reasoning_that_ends_with_its_budget_is_not_interrupted(
    pieces: tuple[str, ...], fields: dict[str, Any]
) -> None:
    engine = ScriptedEngine(make_script(*pieces))
    with serve_scripted(engine, chat_template=THINKER) as server:
        message = post_for_message(server, thinking_budget=2, **fields)
    assert (message["reasoning_content"], message["content"]) == ("one two", "Yes.")
    assert len(engine.jobs) == 1


def test_text_that_only_resembles_the_closing_marker_is_reasoning() -> None:
    engine = ScriptedEngine(make_script("<think>one", " two</", "b>", " three", "</think>", "Yes."))
    with serve_scripted(engine, chat_template=THINKER) as server:
        message = post_for_message(server, thinking_budget=2)
    assert (message["reasoning_content"], message["content"]) == ("one two</b>", "The answer.")
    assert str(engine.jobs[-1].prompt).endswith("<think>one two</b>\n</think>\n\n")


def test_character_is_not_split() -> None:
    engine = ScriptedEngine(
        [Reply("<think>雨雨</think>Yes.", chunks="bytes", max_uses=1), ANSWER], tokens=True
    )
    with serve_scripted(engine, chat_template=THINKER) as server:
        assert post_for_message(server, thinking_budget=1)["reasoning_content"] == "雨"
    prompt = engine.jobs[-1].prompt
    assert isinstance(prompt, list)
    assert engine.tokenizer is not None
    assert engine.tokenizer.decode(prompt).endswith("<think>雨\n</think>\n\n")


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("budget", [0, 1, 2, 5])
def test_every_character_of_the_answer_has_its_token(tokens: bool, budget: int) -> None:
    script = [Reply("<think>one two three four five six</think>No.", max_uses=1), ANSWER]
    if tokens:
        script[0] = Reply(script[0].text, chunks="bytes", max_uses=1)
    with serve_scripted(ScriptedEngine(script, tokens=tokens), chat_template=THINKER) as server:
        answer = post(server, "it", thinking_budget=budget, logprobs=True).json()
    [choice] = answer["choices"]
    entries = choice["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "The answer."
    assert choice["message"]["content"] == "The answer."
    reasoning = choice["message"].get("reasoning_content", "")
    assert "one two three four five".startswith(reasoning)
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == budget


@pytest.mark.parametrize("streamed", [False, True])
def test_answer_that_no_longer_fits_finishes_with_length(streamed: bool) -> None:
    """The engine counts the tokens of a text prompt, so it reports that the context is full."""
    engine = ScriptedEngine([Reply("<think>" + " word" * 60), ANSWER], context=50)
    finishes = set()
    with serve_scripted(engine, chat_template=THINKER) as server:
        for budget in range(15, 45, 3):
            response = post(server, "it", thinking_budget=budget, tools=None, stream=streamed)
            assert response.status_code == 200
            last = parse_events(response)[-1] if streamed else response.json()
            finishes.add(last["choices"][0]["finish_reason"])
    assert finishes == {"length"}


def test_call_drafted_inside_reasoning_counts_as_reasoning() -> None:
    draft = '<think>a <tool_call>{"name": "weather", "arguments": {"city": "'
    engine = ScriptedEngine([Reply(draft + " word" * 300, max_uses=1), ANSWER])
    with serve_scripted(engine, chat_template=THINKER) as server:
        answer = post(server, "it", thinking_budget=30, max_tokens=200).json()
    assert answer["choices"][0]["message"]["content"] == "The answer."
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 31
    assert len(engine.jobs) == 2


# how reasoning is opened, and what precedes the answer after it
ENDINGS = {
    "think": ("<think>", "\n</think>\n\n"),
    "mistral_think": ("[THINK]", "\n[/THINK]\n\n"),
    "solar_open": ("<|think|>", "\n<|end|><|begin|>assistant<|content|>"),
    "inkling": ("<|content_thinking|>", "\n<|end_message|><|message_model|><|content_text|>"),
    "kimi_k3": ("<|open|>think<|sep|>", "\n<|close|>think<|sep|><|open|>response<|sep|>"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_answer_continues_after_the_end_of_reasoning_in_its_format(name: str) -> None:
    begin, ending = ENDINGS[name]
    engine = ScriptedEngine(make_script(begin, "one", " two", " three"))
    with serve_scripted(engine, chat_template=THINKER, reasoning_format=name) as server:
        message = post_for_message(server, thinking_budget=2)
    assert (message["reasoning_content"], message["content"]) == ("one two", "The answer.")
    assert str(engine.jobs[-1].prompt).endswith(f"{begin}one two{ending}")


@pytest.mark.parametrize("name", ["harmony", "muse_glimmer", "think_append"])
def test_budget_is_rejected_for_formats_without_a_closing_marker(name: str) -> None:
    with serve_scripted("x", chat_template=THINKER, reasoning_format=name) as server:
        response = post(server, "it", thinking_budget=2)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "thinking_budget"


class TextEngine:
    """An engine that takes token ids and yields text."""

    def __init__(self, *answers: tuple[str, ...]) -> None:
        self.tokenizer = ByteTokenizer(markup=("<think>", "</think>"))
        self.capabilities = Capabilities(token_prompts=True)
        self.jobs: list[Job] = []
        self._answers = answers

    async def admit(self, job: Job) -> None:
        pass

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        self.jobs.append(job)
        for piece in self._answers[len(self.jobs) - 1]:
            yield Step(text=piece, tokens=1)
        yield Step(finish="stop")


def test_markers_generated_as_text_are_sent_back_as_tokens() -> None:
    engine = TextEngine(("<think>", "one", " two"), ("The answer.",))
    with serve_scripted(engine, chat_template=THINKER) as server:
        assert post_for_message(server, thinking_budget=1)["content"] == "The answer."
    first, second = (job.prompt for job in engine.jobs)
    assert isinstance(second, list)
    markers = engine.tokenizer.encode_with_specials("<think>one\n</think>\n\n")
    assert second == [*first, *markers]
