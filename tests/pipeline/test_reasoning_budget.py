"""A budget for thoughts: the answer is the model's own, and every token of it is counted."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from dragoman.testing import ByteTokenizer, Reply, ScriptedEngine
from dragoman.types import Capabilities, Job, Step
from tests.pipeline.test_output_formats import THINKER, post
from tests.support.serving import RunningServer, parse_events, serve_scripted

ANSWER = Reply("The answer.")


def thinking(*pieces: Any) -> list[Reply]:
    """A model that says the pieces, a token each, and the answer when it is interrupted."""
    return [Reply("".join(pieces), pieces=pieces, max_uses=1), ANSWER]


def message(server: RunningServer, **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = post(server, "it", **fields).json()["choices"][0]["message"]
    return made


def test_a_model_that_thinks_again_whenever_it_is_interrupted_is_left_to_it() -> None:
    engine = ScriptedEngine("<think>hm</think>Yes.")
    with serve_scripted(engine, chat_template=THINKER) as server:
        said = message(server, thinking_budget=0)
    assert said["content"] == "Yes."
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
def test_thoughts_that_end_with_their_budget_are_not_interrupted(
    pieces: tuple[str, ...], fields: dict[str, Any]
) -> None:
    engine = ScriptedEngine(thinking(*pieces))
    with serve_scripted(engine, chat_template=THINKER) as server:
        said = message(server, thinking_budget=2, **fields)
    assert (said["reasoning_content"], said["content"]) == ("one two", "Yes.")
    assert len(engine.jobs) == 1


def test_what_only_looked_like_the_mark_is_a_thought() -> None:
    engine = ScriptedEngine(thinking("<think>one", " two</", "b>", " three", "</think>", "Yes."))
    with serve_scripted(engine, chat_template=THINKER) as server:
        said = message(server, thinking_budget=2)
    assert (said["reasoning_content"], said["content"]) == ("one two</b>", "The answer.")
    assert str(engine.jobs[-1].prompt).endswith("<think>one two</b>\n</think>\n\n")


def test_a_character_is_not_cut() -> None:
    engine = ScriptedEngine(
        [Reply("<think>雨雨</think>Yes.", chunks="bytes", max_uses=1), ANSWER], tokens=True
    )
    with serve_scripted(engine, chat_template=THINKER) as server:
        assert message(server, thinking_budget=1)["reasoning_content"] == "雨"
    prompt = engine.jobs[-1].prompt
    assert isinstance(prompt, list)
    assert engine.tokenizer is not None
    assert engine.tokenizer.decode(prompt).endswith("<think>雨\n</think>\n\n")


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("budget", [0, 1, 2, 5])
def test_fact30_every_character_of_the_answer_has_its_token(tokens: bool, budget: int) -> None:
    script = [Reply("<think>one two three four five six</think>No.", max_uses=1), ANSWER]
    if tokens:
        script[0] = Reply(script[0].text, chunks="bytes", max_uses=1)
    with serve_scripted(ScriptedEngine(script, tokens=tokens), chat_template=THINKER) as server:
        answer = post(server, "it", thinking_budget=budget, logprobs=True).json()
    [choice] = answer["choices"]
    entries = choice["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "The answer."
    assert choice["message"]["content"] == "The answer."
    thoughts = choice["message"].get("reasoning_content", "")
    assert "one two three four five".startswith(thoughts)
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == budget


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_no_longer_fits_ends_at_its_length(streamed: bool) -> None:
    """The engine counts the tokens of a text, so it is the one to say that it is full."""
    engine = ScriptedEngine([Reply("<think>" + " word" * 60), ANSWER], context=50)
    finishes = set()
    with serve_scripted(engine, chat_template=THINKER) as server:
        for budget in range(15, 45, 3):
            response = post(server, "it", thinking_budget=budget, tools=None, stream=streamed)
            assert response.status_code == 200
            last = parse_events(response)[-1] if streamed else response.json()
            finishes.add(last["choices"][0]["finish_reason"])
    assert finishes == {"length"}


def test_a_call_that_is_drafted_among_thoughts_counts() -> None:
    draft = '<think>a <tool_call>{"name": "weather", "arguments": {"city": "'
    engine = ScriptedEngine([Reply(draft + " word" * 300, max_uses=1), ANSWER])
    with serve_scripted(engine, chat_template=THINKER) as server:
        answer = post(server, "it", thinking_budget=30, max_tokens=200).json()
    assert answer["choices"][0]["message"]["content"] == "The answer."
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 31
    assert len(engine.jobs) == 2


# how thoughts are opened, and what must stand before the answer that follows them
ENDINGS = {
    "think": ("<think>", "\n</think>\n\n"),
    "mistral_think": ("[THINK]", "\n[/THINK]\n\n"),
    "solar_open": ("<|think|>", "\n<|end|><|begin|>assistant<|content|>"),
    "inkling": ("<|content_thinking|>", "\n<|end_message|><|message_model|><|content_text|>"),
    "kimi_k3": ("<|open|>think<|sep|>", "\n<|close|>think<|sep|><|open|>response<|sep|>"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_the_answer_follows_what_it_follows_in_its_format(name: str) -> None:
    begin, ending = ENDINGS[name]
    engine = ScriptedEngine(thinking(begin, "one", " two", " three"))
    with serve_scripted(engine, chat_template=THINKER, reasoning_format=name) as server:
        said = message(server, thinking_budget=2)
    assert (said["reasoning_content"], said["content"]) == ("one two", "The answer.")
    assert str(engine.jobs[-1].prompt).endswith(f"{begin}one two{ending}")


@pytest.mark.parametrize("name", ["harmony", "muse_glimmer", "think_append"])
def test_thoughts_that_we_cannot_end_have_no_budget(name: str) -> None:
    with serve_scripted("x", chat_template=THINKER, reasoning_format=name) as server:
        response = post(server, "it", thinking_budget=2)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "thinking_budget"


class Talker:
    """Takes token ids and answers with text."""

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


def test_marks_that_came_as_text_go_back_as_tokens() -> None:
    engine = Talker(("<think>", "one", " two"), ("The answer.",))
    with serve_scripted(engine, chat_template=THINKER) as server:
        assert message(server, thinking_budget=1)["content"] == "The answer."
    first, second = (job.prompt for job in engine.jobs)
    assert isinstance(second, list)
    marked = engine.tokenizer.encode_with_specials("<think>one\n</think>\n\n")
    assert second == [*first, *marked]
