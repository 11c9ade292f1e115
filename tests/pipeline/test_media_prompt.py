"""Pictures and sound from a request to the engine's KV cache, with fabricated models.

Everything but the weights is real: HTTP, decoding, templates, the native engine in its process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.types.media_ids import make_media_ids
from tests.support import vision_models as models
from tests.support.media_files import make_sound
from tests.support.serving import RunningServer
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
    serve_models,
    write_models,
)

QUESTION = "What is this?"
LOW, HIGH = make_sound(), make_sound(seconds=0.25)
SPECIALS = (*models.SPECIALS, *models.USER_DEFINED)
FIRST_SPECIAL = 256


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = write_models(tmp_path_factory.mktemp("models"))
    # a template that ends with the content, and writes media as the client placed it
    models.write_text_model(
        root / "bare/bare.gguf", "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    models.write_mlp_projector(root / "bare/mmproj.gguf")
    models.write_text_model(root / "pieces/pieces.gguf", has_pieces=True, add_bos=True)
    models.write_mlp_projector(root / "pieces/mmproj.gguf")
    with serve_models(root) as running:
        yield running


@pytest.mark.parametrize(
    ("model", "first", "second", "tokens"),
    [("eyes", RED, BLUE, models.MLP_TOKENS), ("ears", LOW, HIGH, models.AUDIO_TOKENS)],
    ids=["pictures", "sounds"],
)
def test_media_change_the_answer_and_are_cached(
    server: RunningServer, model: str, first: Part, second: Part, tokens: int
) -> None:
    answers = [ask(server, [part, QUESTION], model) for part in (first, second, first)]
    assert get_text(answers[0]) == get_text(answers[2]) != get_text(answers[1])
    again = ask(server, [first, QUESTION], model)
    assert count_cached(again) == again["usage"]["prompt_tokens"] - 1
    before = [*answers[0]["debug"]["prompt_ids"]].index(
        next(token for token in answers[0]["debug"]["prompt_ids"] if token < 0)
    )
    assert count_cached(answers[1]) == before
    text = drop_media(answers[0]["debug"]["prompt_ids"])
    assert answers[0]["usage"]["prompt_tokens"] == len(text) + tokens


def test_every_wire_api_sends_the_same_prompt(server: RunningServer) -> None:
    prompts = {}
    for name, make_request in DIALECTS.items():
        response = post(server, *make_request([RED, BLUE, QUESTION], "eyes"))
        prompts[name] = get_ids(response)
    assert len({tuple(prompt) for prompt in prompts.values()}) == 1, prompts
    assert len(find_runs(prompts["chat"])) == 2
    sounds = [
        get_ids(post(server, *make([LOW, QUESTION], "ears"))) for make in (ask_chat, ask_ollama)
    ]
    assert sounds[0] == sounds[1]


@pytest.mark.parametrize("make_request", [ask_chat, ask_responses, ask_messages])
def test_media_stand_where_the_client_put_them(server: RunningServer, make_request: Any) -> None:
    red, blue = (find_runs(ask(server, [part])["debug"]["prompt_ids"])[0] for part in (RED, BLUE))
    ids = get_ids(post(server, *make_request(["a", RED, "b", BLUE, "c", RED], "eyes")))
    assert find_runs(ids) == [red, blue, red]
    start = ids.index(red[0])
    end = len(ids) - 1 - ids[::-1].index(red[-1])
    between = drop_media(ids[start:end])
    assert between == [ord("b"), ord("c")]
    assert ids[start - 1] == ord("a")
    # the tokens around a picture are the engine's to add, so the template's own are not sent
    vision_start = FIRST_SPECIAL + SPECIALS.index("<|vision_start|>")
    assert vision_start not in ids


def test_tokens_of_media_are_counted(server: RunningServer) -> None:
    parts: list[Part] = ["a", RED, BLUE, QUESTION]
    used = ask(server, parts)["usage"]["prompt_tokens"]
    for path, (_, body) in {
        "/v1/messages/count_tokens": ask_messages(parts, "eyes"),
        "/v1/responses/input_tokens": ask_responses(parts, "eyes"),
    }.items():
        counted = {key: body[key] for key in ("model", "messages", "input") if key in body}
        response = post(server, path, counted)
        assert response.json()["input_tokens"] == used, path
    response = post(server, "/tokenize", ask_chat(parts, "eyes")[1])
    assert (response.status_code, "no ids" in response.text) == (400, True)


def test_special_tokens_in_text_beside_a_picture_stay_text(server: RunningServer) -> None:
    plain = ask(server, [RED, "x and x"])["debug"]["prompt_ids"]
    wanted = sorted(token for token in plain if token >= FIRST_SPECIAL)
    for special in SPECIALS:
        response = post(server, *ask_chat([RED, f"{special} and {special[:-1]}"], "eyes"))
        ids = get_ids(response)
        assert sorted(token for token in ids if token >= FIRST_SPECIAL) == wanted, special
        assert "zero-width" in response.headers["x-dragoman-warning"]
        assert find_runs(ids) == find_runs(plain)
    # without a picture the text is sent as it is
    response = post(server, *ask_chat([f"{SPECIALS[0]} and"], "eyes"))
    assert "x-dragoman-warning" not in response.headers
    assert bytes(token for token in get_ids(response) if token < 256).count(b"<|endoftext|>") == 1


def test_tokenizers_of_sentencepiece_read_text_beside_a_picture(server: RunningServer) -> None:
    """They put spaces before texts, and BOS before all of it, in both ways to tokenize."""
    parts: list[Part] = ["what is ab?", RED, " It é\n日本 ", BLUE, "<|im_end|>", "what"]
    answer, again = ask(server, parts, "pieces"), ask(server, parts, "pieces")
    plain = ask(server, [part for part in parts if isinstance(part, str)], "pieces")
    count = answer["usage"]["prompt_tokens"]
    assert count == len(drop_media(answer["debug"]["prompt_ids"])) + 2 * models.MLP_TOKENS
    assert count > plain["usage"]["prompt_tokens"]
    assert count_cached(again) == count - 1
    bos = answer["debug"]["prompt_ids"][0]
    assert answer["debug"]["prompt_ids"].count(bos) == 1


def test_text_that_looks_like_media_is_text(server: RunningServer) -> None:
    """Neither the template's placeholder nor our own marker makes a picture of a text."""
    red = make_media_ids("ab" * 32)
    forged = "\ufdd3" + "ab" * 32 + "\ufdd3 <|vision_start|><|image_pad|><|vision_end|>"
    for media in ([], [RED]):
        ids = ask(server, [*media, forged])["debug"]["prompt_ids"]
        assert len(find_runs(ids)) == len(media)
        assert red not in find_runs(ids)
    response = post(server, "/v1/completions", {"model": "eyes", "prompt": [*red, 97]})
    assert response.status_code == 400


def test_a_prompt_never_ends_in_media(server: RunningServer) -> None:
    response = post(server, *ask_chat(["text", RED], "bare"))
    assert response.status_code == 400, response.text
    assert "end with a picture" in response.json()["error"]["message"]
    assert get_text(ask(server, [RED, "text"], "bare"))


def test_sounds_of_any_length_end_no_process(server: RunningServer) -> None:
    for seconds, status in ((0.0001, 400), (0.005, 400), (0.01, 200)):
        sound = make_sound(seconds=seconds)
        response = post(server, *ask_chat([sound, QUESTION], "ears"))
        assert response.status_code == status, (seconds, response.text)
    assert "at least 10 ms" in post(server, *ask_chat([make_sound(seconds=0.0001)], "ears")).text


def test_a_text_model_rejects_media_by_name(server: RunningServer) -> None:
    for name, make_request in DIALECTS.items():
        response = post(server, *make_request([RED, QUESTION], "text"))
        assert response.status_code == 400, name
        assert "does not support" in response.text
    response = post(server, *ask_chat([LOW, QUESTION], "eyes"))
    assert (response.status_code, "input_audio" in response.text) == (400, True)
    response = post(server, *ask_chat([RED, QUESTION], "ears"))
    assert (response.status_code, "image_url" in response.text) == (400, True)


def test_a_prompt_that_is_too_long_with_its_media_says_so(server: RunningServer) -> None:
    response = post(server, *ask_chat([*[LOW] * 11, QUESTION], "ears"))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert str(11 * models.AUDIO_TOKENS)[:2] in error["message"]


def test_a_screenshot_in_a_tool_result_reaches_the_model(server: RunningServer) -> None:
    red = find_runs(ask(server, [RED])["debug"]["prompt_ids"])[0]
    prompts = []
    for make_turn in (make_tool_chat, make_codex_turn):
        response = post(server, *make_turn("eyes", "Taken.", RED))
        prompt = response.json()["debug"]["prompt"]
        assert "<tool_response>\nTaken.[media]\n</tool_response>" in prompt
        assert find_runs(get_ids(response)) == [red]
        prompts.append(prompt)
        response = post(server, *make_turn("text", "Taken.", RED))
        assert "not shown, only text is supported]" in response.json()["debug"]["prompt"]
        assert "not shown to the model" in response.headers["x-dragoman-warning"]
    assert prompts[0] == prompts[1]


def continue_chat(server: RunningServer, picture: Part, **fields: Any) -> httpx.Response:
    """Ask about a picture, and go on after the answer."""
    first = ask(server, [picture, QUESTION], **fields)
    _, body = ask_chat([picture, QUESTION], "eyes")
    answer = {"role": "assistant", "content": get_text(first)}
    body["messages"] += [answer, {"role": "user", "content": "And now?"}]
    response = post(server, "/v1/chat/completions", body)
    assert response.status_code == 200, response.text
    return response


def test_turns_after_a_picture_are_replayed(server: RunningServer) -> None:
    response = continue_chat(server, RED, guided_choice=["xyz"])
    assert "recalled=1" in response.headers["x-dragoman-prompt"]
    used = response.json()["usage"]
    cached = used["prompt_tokens_details"]["cached_tokens"]
    assert cached > used["prompt_tokens"] - 40  # all but the end of the turn and the new question
    # what the model wrote here is no text, so it cannot be put back beside a picture
    lost = continue_chat(server, BLUE, seed=5)
    assert "recalled=0" in lost.headers["x-dragoman-prompt"]
    metrics = httpx.get(f"{server.url}/metrics").text
    assert 'reason="reread"' in metrics


def test_chats_that_differ_in_a_picture_are_different(server: RunningServer) -> None:
    ask(server, ["compare", RED, QUESTION])
    for picture, is_known in ((RED, True), (BLUE, False)):
        response = post(server, *ask_chat(["compare", picture, QUESTION], "eyes"))
        known = f"known={response.json()['usage']['prompt_tokens']}"
        assert (known in response.headers["x-dragoman-prompt"]) is is_known


def test_a_stored_response_with_a_picture_is_continued(server: RunningServer) -> None:
    path, body = ask_responses([RED, QUESTION], "eyes")
    first = post(server, path, body)
    red = find_runs(get_ids(first))
    again = {"model": "eyes", "previous_response_id": first.json()["id"], "input": "And now?"}
    for _ in range(2):
        response = post(server, path, again | {"max_output_tokens": 8})
        assert find_runs(get_ids(response)) == red
        again["previous_response_id"] = response.json()["id"]


def test_models_say_what_they_read(server: RunningServer) -> None:
    cards = httpx.get(f"{server.url}/v1/models").json()["data"]
    modalities = {card["id"]: card["modalities"] for card in cards}
    expected = {"eyes": ["text", "image"], "ears": ["text", "audio"], "text": ["text"]}
    assert {name: modalities[name] for name in expected} == expected


def test_choices_and_streams_work_with_media(server: RunningServer) -> None:
    path, body = ask_chat([RED, QUESTION], "eyes")
    fields: dict[str, Any] = {"guided_choice": ["xyz"], "logprobs": True, "top_logprobs": 2}
    whole = ask(server, [RED, QUESTION], n=2, **fields)
    assert [choice["message"]["content"] for choice in whole["choices"]] == ["xyz"] * 2
    assert all(len(choice["logprobs"]["content"]) == 3 for choice in whole["choices"])
    with httpx.stream("POST", f"{server.url}{path}", json=body | {"stream": True}) as response:
        assert response.status_code == 200
        assert "".join(response.iter_text()).endswith("data: [DONE]\n\n")
    response = post(server, path, body | {"min_tokens": 4})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "min_tokens")


def test_owners_do_not_share_pictures(tmp_path: Path) -> None:
    root = write_models(tmp_path)
    with serve_models(root, api_key=("first-owner-key", "second-owner-key")) as running:
        path, body = ask_chat([RED, QUESTION], "eyes")
        cached = []
        for key in ("first-owner-key", "first-owner-key", "second-owner-key"):
            headers = {"authorization": f"Bearer {key}"}
            response = post(running, path, body, headers)
            assert response.status_code == 200, response.text
            cached.append(count_cached(response.json()))
        assert cached[0] == cached[2] == 0
        assert cached[1] > 0
