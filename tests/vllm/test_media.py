"""Pictures from a request to the KV cache of vLLM, with a tiny model of random weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.errors import BadRequest
from dragoman.types import Job, Sampling
from dragoman.types.media_ids import make_media_ids
from tests.support.media_files import make_image, make_sound
from tests.support.serving import RunningServer
from tests.support.vision_items import make_item
from tests.support.vision_server import (
    BLUE,
    DIALECTS,
    RED,
    Part,
    ask,
    ask_chat,
    ask_messages,
    ask_ollama,
    ask_responses,
    count_cached,
    drop_media,
    find_runs,
    get_ids,
    get_text,
    make_codex_turn,
    make_tool_chat,
    post,
)
from tests.support.vllm_media_models import (
    SPECIALS,
    TILE_TOKENS,
    write_audio_model,
    write_vision_model,
)
from tests.support.vllm_model import NAME, get_model, serve_vllm

MODEL, HEARING_MODEL = "vision", "hearing"
QUESTION = "What is this?"
FIRST_SPECIAL = 256
BLOCK = 32  # tokens of a block of the KV cache
# the picture is scaled to 4 x 4 tiles; a tile has two tokens before it, a row a line feed, and the
# small picture of all of it comes after two line feeds and a token, with another one behind it
SQUARE_TOKENS = 4 * (4 * (2 + TILE_TOKENS) + 1) + 2 + TILE_TOKENS + 1


@pytest.fixture(scope="module")
def eyes(tmp_path_factory: pytest.TempPathFactory, _prepare: None) -> Iterator[RunningServer]:
    """Return a server with a model that sees."""
    folder = write_vision_model(tmp_path_factory.mktemp("models") / MODEL)
    with serve_vllm(folder, context=2048, engine_arg=(f"block_size={BLOCK}",)) as running:
        yield running


def look(server: RunningServer, *parts: Part, **fields: Any) -> dict[str, Any]:
    return ask(server, parts, MODEL, **fields)


def test_pictures_change_the_answer_and_are_cached(eyes: RunningServer) -> None:
    answers = [look(eyes, part, QUESTION) for part in (RED, BLUE, RED)]
    texts = [get_text(answer) for answer in answers]
    assert texts[0] == texts[2] != texts[1]
    prompt = answers[2]["usage"]["prompt_tokens"]
    assert count_cached(answers[2]) >= prompt - BLOCK
    assert count_cached(answers[1]) <= BLOCK  # only what comes before the picture
    text = drop_media(answers[0]["debug"]["prompt_ids"])
    assert prompt == len(text) + SQUARE_TOKENS
    refused = look(eyes, RED, QUESTION, cache_prompt=False)
    assert count_cached(refused) == 0


def test_order_and_number_of_pictures_count(eyes: RunningServer) -> None:
    orders: list[list[Part]] = [[RED, BLUE], [BLUE, RED], [RED, RED], [RED]]
    answers = [look(eyes, *pictures, QUESTION, max_tokens=16) for pictures in orders]
    assert len({get_text(answer) for answer in answers}) == len(orders)
    text = len(drop_media(answers[0]["debug"]["prompt_ids"]))
    for pictures, answer in zip(orders, answers, strict=True):
        assert answer["usage"]["prompt_tokens"] == text + len(pictures) * SQUARE_TOKENS
    wide = look(eyes, make_image(size=(64, 16)), QUESTION)
    assert text < wide["usage"]["prompt_tokens"] < text + SQUARE_TOKENS


def test_every_wire_api_sends_the_same_prompt(eyes: RunningServer) -> None:
    parts: list[Part] = [RED, BLUE, QUESTION]
    prompts = {
        name: get_ids(post(eyes, *make_request(parts, MODEL)))
        for name, make_request in DIALECTS.items()
    }
    assert len({tuple(prompt) for prompt in prompts.values()}) == 1, prompts
    ids = get_ids(post(eyes, *ask_chat(["a", RED, "b", BLUE, "c"], MODEL)))
    assert find_runs(ids) == find_runs(prompts["chat"])
    start = ids.index(find_runs(ids)[0][0])
    assert bytes(token for token in ids[start - 1 :] if 0 <= token < 256).startswith(b"abc")


def test_tokens_of_pictures_are_counted_before_and_after(eyes: RunningServer) -> None:
    parts: list[Part] = ["a", RED, BLUE, QUESTION]
    used = look(eyes, *parts)["usage"]["prompt_tokens"]
    with_logprobs = look(eyes, *parts, logprobs=True, top_logprobs=2)  # through `AsyncLLM`
    assert with_logprobs["usage"]["prompt_tokens"] == used
    for path, (_, body) in {
        "/v1/messages/count_tokens": ask_messages(parts, MODEL),
        "/v1/responses/input_tokens": ask_responses(parts, MODEL),
    }.items():
        counted = {key: body[key] for key in ("model", "messages", "input") if key in body}
        assert post(eyes, path, counted).json()["input_tokens"] == used, path


def test_special_tokens_in_text_beside_a_picture_stay_text(eyes: RunningServer) -> None:
    plain = look(eyes, RED, "x")
    wanted = sorted(t for t in plain["debug"]["prompt_ids"] if t >= FIRST_SPECIAL)
    for special in SPECIALS[:8]:
        response = post(eyes, *ask_chat([RED, special], MODEL))
        ids = get_ids(response)
        assert sorted(token for token in ids if token >= FIRST_SPECIAL) == wanted, special
        assert special.encode() in bytes(token for token in ids if 0 <= token < 256)
        assert "x-dragoman-warning" not in response.headers  # the text is not changed
        tokens = response.json()["usage"]["prompt_tokens"]
        assert tokens == len(drop_media(ids)) + SQUARE_TOKENS, special
    # the id of the placeholder without a picture is a token like others
    placeholder = FIRST_SPECIAL + SPECIALS.index("<image>")
    body = {"model": MODEL, "prompt": [97, placeholder, placeholder, 98], "max_tokens": 2}
    assert post(eyes, "/v1/completions", body).status_code == 200
    forged = [*make_media_ids("ab" * 32), 97]
    body = {"model": MODEL, "prompt": forged, "max_tokens": 2}
    assert post(eyes, "/v1/completions", body).status_code == 400


def test_prompts_that_the_engine_must_not_get_are_rejected(eyes: RunningServer) -> None:
    engine = get_model(eyes).engine
    item = make_item(RED)
    run = make_media_ids(item.digest)
    placeholder = FIRST_SPECIAL + SPECIALS.index("<image>")
    cases = {
        "end with a picture": [97, *run],
        "where they belong": [placeholder, 97, *run, 98],
        "is not a token id": [*run, 5000],
    }
    for message, ids in cases.items():
        sampling = Sampling(temperature=0.0, max_tokens=1)
        job = Job(id="rejected", prompt=ids, sampling=sampling, media=(item,))
        with pytest.raises(BadRequest, match=message):
            eyes.run_coroutine(engine.admit(job), 60)
    job = Job(id="rejected", prompt=[*run, 97], prompt_logprobs=1, media=(item,))
    with pytest.raises(BadRequest, match="Logprobs of a prompt"):
        eyes.run_coroutine(engine.admit(job), 60)
    for pictures, words in ((16, 100), (1, 1000)):  # more than the context with or without media
        response = post(eyes, *ask_chat([*[RED] * pictures, "long " * words], MODEL))
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
    long_job = Job(id="long", prompt=[*run, *[97] * 3000], media=(item,))
    with pytest.raises(BadRequest, match="maximum context length"):
        eyes.run_coroutine(engine.admit(long_job), 60)
    assert get_text(look(eyes, RED, QUESTION))


def test_text_models_and_other_media_are_rejected_by_name(
    eyes: RunningServer, server: RunningServer
) -> None:
    for name, make_request in DIALECTS.items():
        response = post(server, *make_request([RED, QUESTION], NAME))
        assert (response.status_code, "does not support" in response.text) == (400, True), name
    response = post(eyes, *ask_chat([make_sound(), QUESTION], MODEL))
    assert (response.status_code, "input_audio" in response.text) == (400, True)


def test_a_screenshot_in_a_tool_result_reaches_the_model(eyes: RunningServer) -> None:
    red = find_runs(look(eyes, RED)["debug"]["prompt_ids"])
    prompts = []
    for make_turn in (make_tool_chat, make_codex_turn):
        response = post(eyes, *make_turn(MODEL, "Taken.", RED))
        assert find_runs(get_ids(response)) == red
        prompts.append(response.json()["debug"]["prompt"])
    assert prompts[0] == prompts[1]
    assert "<tool_response>\nTaken.[media]\n</tool_response>" in prompts[0]


def test_turns_after_a_picture_are_replayed_as_tokens(eyes: RunningServer) -> None:
    """The answer is random bytes, which as text would be other tokens."""
    _, body = ask_chat([RED, QUESTION], MODEL)
    first = look(eyes, RED, QUESTION, max_tokens=24, ignore_eos=True)
    turns = [{"role": "assistant", "content": get_text(first)}, {"role": "user", "content": "So?"}]
    body["messages"] += turns
    response = post(eyes, "/v1/chat/completions", body)
    assert response.status_code == 200, response.text
    assert "recalled=1" in response.headers["x-dragoman-prompt"]
    usage = response.json()["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    print(f"cached {cached} of {usage['prompt_tokens']} tokens in the second turn")
    assert cached >= first["usage"]["total_tokens"] - 2 * BLOCK


def test_choices_streams_and_constraints_work_with_pictures(eyes: RunningServer) -> None:
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
    whole = look(eyes, RED, QUESTION, n=2, guided_choice=["xyz"], **fields)
    assert [choice["message"]["content"] for choice in whole["choices"]] == ["xyz"] * 2
    assert all(len(choice["logprobs"]["content"]) == 3 for choice in whole["choices"])
    seeded = [look(eyes, RED, QUESTION, n=2, temperature=1, seed=seed) for seed in (1, 1, 2)]
    texts = [[choice["message"]["content"] for choice in entry["choices"]] for entry in seeded]
    assert texts[0] == texts[1] != texts[2]
    path, body = ask_chat([RED, BLUE, QUESTION], MODEL)
    expected = get_text(look(eyes, RED, BLUE, QUESTION))
    with httpx.stream("POST", f"{eyes.url}{path}", json=body | {"stream": True}) as response:
        lines = [line[6:] for line in response.iter_lines() if line.startswith("data: {")]
    deltas = [json.loads(line)["choices"] for line in lines]
    assert "".join(choices[0]["delta"].get("content") or "" for choices in deltas) == expected


def test_owners_do_not_share_pictures(eyes: RunningServer) -> None:
    engine = get_model(eyes).engine
    item = make_item(BLUE)
    ids = [*make_media_ids(item.digest), *b"Who sees this picture?"]

    async def count_cached_tokens(scope: str) -> int | None:
        sampling = Sampling(temperature=0.0, max_tokens=1)
        fields: dict[str, Any] = {"sampling": sampling, "media": (item,), "cache_scope": scope}
        job = Job(id=f"owner-{scope}", prompt=ids, **fields)
        steps = [step async for step in engine.generate(job)]
        return next(step.cached_tokens for step in steps if step.prompt_tokens is not None)

    cached = [eyes.run_coroutine(count_cached_tokens(scope), 60) for scope in ("a", "a", "b")]
    assert cached[0] == cached[2] == 0
    assert (cached[1] or 0) > 0


def test_the_model_says_what_it_reads(eyes: RunningServer) -> None:
    card = httpx.get(f"{eyes.url}/v1/models/{MODEL}").json()
    assert card["modalities"] == ["text", "image"]


def test_sounds_change_the_answer_and_are_cached(tmp_path: Path) -> None:
    folder = write_audio_model(tmp_path / HEARING_MODEL)
    block = f"block_size={BLOCK}"
    sounds = [make_sound(seconds=2), make_sound(seconds=2, rate=44100), make_sound(seconds=3)]
    with serve_vllm(folder, context=2048, engine_arg=(block,)) as ears:
        answers = [ask(ears, [part, QUESTION], HEARING_MODEL) for part in (*sounds, sounds[0])]
        texts = [get_text(answer) for answer in answers]
        assert texts[0] == texts[3]
        assert len(set(texts)) == 3
        prompts = [answer["usage"]["prompt_tokens"] for answer in answers]
        assert prompts[0] == prompts[1] < prompts[2]  # 25 tokens for each second
        assert count_cached(answers[3]) >= prompts[3] - BLOCK
        both = [
            get_ids(post(ears, *make_request([sounds[0], QUESTION], HEARING_MODEL)))
            for make_request in (ask_chat, ask_ollama)
        ]
        assert both[0] == both[1]
        response = post(ears, *ask_chat([RED, QUESTION], HEARING_MODEL))
        assert (response.status_code, "image_url" in response.text) == (400, True)
        for seconds in (0.0001, 0.01):  # of any length: the process goes on
            short = post(ears, *ask_chat([make_sound(seconds=seconds), QUESTION], HEARING_MODEL))
            assert short.status_code in (200, 400), short.text
        assert get_text(ask(ears, [sounds[0], QUESTION], HEARING_MODEL)) == texts[0]
