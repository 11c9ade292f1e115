"""Projector files: which one belongs to a model, and broken ones, which never end a process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.engines.llamacpp import gguf
from dragoman.engines.llamacpp.engine import create
from dragoman.engines.llamacpp.media.media_prompts import COUNT_PATH
from dragoman.engines.llamacpp.media.projector import find_projector, read_projector
from dragoman.errors import BadRequest, ModelBroken
from dragoman.types.cache_scope import restore_cache_scope
from dragoman.types.media_ids import make_media_ids
from tests.support import vision_models as models
from tests.support.llama_engine import EngineRunner, generate, get_error, make_job
from tests.support.media_files import make_image
from tests.support.vision_items import make_item
from tests.support.vision_server import RED, ask, ask_chat, get_text, post, serve_models

PROJECTORS = {
    "mlp": models.write_mlp_projector,
    "idefics3": models.write_idefics3_projector,
    "qwen2vl": models.write_qwen2vl_projector,
    "ultravox": models.write_ultravox_projector,
}
# keys that the library does without, or reads a default for
OPTIONAL_KEYS = ("general.", "clip.use_gelu", "projection_dim", "preproc_image_size")
OPTIONAL_TENSORS = (".bias",)  # of encoders; the library leaves them out of the computation


@pytest.mark.parametrize(
    ("files", "model", "expected"),
    [
        (["a.gguf"], "a.gguf", None),
        (["a.gguf", "mmproj.gguf"], "a.gguf", "mmproj.gguf"),
        (["a-Q4_K_M.gguf", "mmproj-model-f16.gguf"], "a-Q4_K_M.gguf", "mmproj-model-f16.gguf"),
        (["a-q4_0.gguf", "a-Q8_0.gguf", "mmproj.gguf"], "a-Q8_0.gguf", "mmproj.gguf"),
        (["a.gguf", "b.gguf", "mmproj.gguf"], "a.gguf", None),
        (["a.gguf", "b.gguf", "mmproj-a.gguf"], "a.gguf", "mmproj-a.gguf"),
        (["a.gguf", "b.gguf", "mmproj-a.gguf"], "b.gguf", None),
        (["a-b.gguf", "c.gguf", "a_b.mmproj-Q8_0.gguf"], "a-b.gguf", "a_b.mmproj-Q8_0.gguf"),
        (["a.gguf", "b.gguf", "a-mmproj-bf16.gguf"], "a.gguf", "a-mmproj-bf16.gguf"),
        (
            ["a.gguf", "mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf"],
            "a.gguf",
            "mmproj-F16.gguf",
        ),
        (
            ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "mmproj.gguf"],
            "a-00001-of-00002.gguf",
            "mmproj.gguf",
        ),
    ],
)
def test_the_projector_beside_a_model_is_found(
    tmp_path: Path, files: list[str], model: str, expected: str | None
) -> None:
    for name in files:
        (tmp_path / name).touch()
    found = find_projector(tmp_path / model)
    assert (None if found is None else found.name) == expected
    assert find_projector(tmp_path / model, "none") is None
    assert find_projector(tmp_path / model, "/other/file") == Path("/other/file")


@pytest.mark.parametrize("kind", PROJECTORS)
def test_a_projector_without_a_part_is_refused(tmp_path: Path, kind: str) -> None:
    """Each tensor and key that is left out makes the file a broken one, or changes nothing."""
    path = PROJECTORS[kind](tmp_path / "mmproj.gguf")
    assert read_projector(path, models.WIDTH).modalities
    header = gguf.read_header(path)
    required = [
        name
        for name in (*header.tensors.shapes, *header.metadata)
        if not any(part in name for part in OPTIONAL_KEYS)
        and not (name.endswith(OPTIONAL_TENSORS) and not name.startswith(("mm.", "a.conv")))
    ]
    assert len(required) > 12
    for name in required:
        broken = PROJECTORS[kind](tmp_path / "broken.gguf", models.Changes(without=name))
        with pytest.raises(ModelBroken, match="mmproj"):
            read_projector(broken, models.WIDTH)


@pytest.mark.parametrize(
    ("kind", "name", "shape"),
    [
        ("mlp", "mm.2.weight", (16, 32)),
        ("mlp", "v.patch_embd.weight", (32, 3, 4, 4)),
        ("mlp", "v.position_embd.weight", (9, 32)),
        ("idefics3", "mm.model.fc.weight", (64, 128)),
        ("idefics3", "v.blk.0.attn_q.weight", (16, 16)),
        ("qwen2vl", "mm.2.weight", (64, 128)),
        ("ultravox", "a.position_embd.weight", (750, 32)),
        ("ultravox", "mm.a.mlp.2.weight", (64, 32)),
    ],
)
def test_a_projector_with_a_wrong_shape_is_refused(
    tmp_path: Path, kind: str, name: str, shape: tuple[int, ...]
) -> None:
    changes = models.Changes(shapes={name: shape})
    path = PROJECTORS[kind](tmp_path / "mmproj.gguf", changes)
    with pytest.raises(ModelBroken, match=r"wrong shape|embeddings of length"):
        read_projector(path, models.WIDTH)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2000])


def write_junk(path: Path) -> None:
    path.write_bytes(b"GGUF" + bytes(100))


def remove_tensor(path: Path) -> None:
    models.write_mlp_projector(path, models.Changes(without="mm.2.weight"))


def use_a_model(path: Path) -> None:
    models.write_text_model(path)


def use_an_unknown_type(path: Path) -> None:
    """A type that is not in our table, whose tensors are all missing."""
    changes = models.Changes(texts={"clip.projector_type": "ldpv2"})
    models.write_mlp_projector(path, changes)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "truncated": truncate,
    "junk": write_junk,
    "incomplete": remove_tensor,
    "model": use_a_model,
    "unknown": use_an_unknown_type,
}


def test_a_broken_projector_ends_no_process(tmp_path: Path) -> None:
    models.write_text_model(tmp_path / "good/good.gguf")
    models.write_mlp_projector(tmp_path / "good/mmproj.gguf")
    for name, damage in DAMAGES.items():
        models.write_text_model(tmp_path / f"{name}/{name}.gguf")
        damage(models.write_mlp_projector(tmp_path / f"{name}/mmproj.gguf"))
    with serve_models(tmp_path, "good") as server:
        for name in DAMAGES:
            response = post(server, *ask_chat(["hello"], name))
            assert response.status_code in (500, 503), response.text
            assert str(tmp_path) not in response.text
            if name != "unknown":  # which the engine itself refuses
                assert "mmproj" in response.text
        assert get_text(ask(server, [RED, "hello"], "good"))


def test_the_operator_chooses_the_projector(tmp_path: Path) -> None:
    models.write_text_model(tmp_path / "models/eyes.gguf")
    models.write_mlp_projector(tmp_path / "elsewhere.gguf")
    remove_tensor(tmp_path / "models/mmproj.gguf")
    (tmp_path / "models/models.yaml").write_text(
        "set: {path: eyes.gguf, mmproj: ../elsewhere.gguf}\n"
        "blind: {path: eyes.gguf, mmproj: none}\n"
    )
    with serve_models(tmp_path / "models", "set") as server:
        cards = httpx.get(f"{server.url}/v1/models", verify=False).json()["data"]  # noqa: S501
        modalities = {card["id"]: card["modalities"] for card in cards}
        assert modalities["set"] == ["text", "image"]
        assert modalities["blind"] == ["text"]
        assert get_text(ask(server, [RED, "hello"], "set"))
        assert post(server, *ask_chat([RED, "hello"], "blind")).status_code == 400


@pytest.mark.parametrize(
    ("kind", "architecture", "small", "large"),
    [("idefics3", "llama", 56, 56), ("qwen2vl", "qwen2vl", 11, 18)],
)
def test_other_projectors_read_pictures(
    tmp_path: Path, kind: str, architecture: str, small: int, large: int
) -> None:
    """Their number of tokens depends on the picture, and the engine writes tokens around it."""
    path = models.write_text_model(tmp_path / "eyes.gguf", architecture=architecture)
    PROJECTORS[kind](tmp_path / "mmproj.gguf")

    async def run() -> None:
        engine = create(path=str(path), threads=1, slots=2)
        try:
            for size, tokens in ((16, small), (64, large)):
                outputs = []
                for colour in ("red", "blue", "red"):
                    item = make_item(make_image(size=(size, size), colour=colour))
                    ids = [97, *make_media_ids(item.digest), 98, 99]
                    outputs.append(await generate(engine, ids, media=(item,)))
                assert outputs[0].get_ids() == outputs[2].get_ids() != outputs[1].get_ids()
                reported = next(
                    step.prompt_tokens for step in outputs[0].steps if step.prompt_tokens
                )
                assert reported == tokens + 3
        finally:
            await engine.aclose()

    asyncio.run(run())


def test_a_picture_that_the_engine_cannot_read_is_the_clients_error(tmp_path: Path) -> None:
    """This projector has no tiles for a picture that is so much longer than wide."""
    models.write_text_model(tmp_path / "tiles.gguf")
    models.write_idefics3_projector(tmp_path / "mmproj.gguf")
    with serve_models(tmp_path, "tiles") as server:
        response = post(server, *ask_chat([make_image(size=(1, 2048)), "hello"], "tiles"))
        assert response.status_code == 400, response.text
        assert "another size or shape" in response.json()["error"]["message"]
        assert get_text(ask(server, [make_image(size=(300, 2048)), "hello"], "tiles"))


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineRunner]:
    root = tmp_path_factory.mktemp("models")
    path = models.write_text_model(root / "eyes.gguf", add_bos=True)
    models.write_mlp_projector(root / "mmproj.gguf")
    running = EngineRunner(path=str(path), threads=1, slots=1)
    yield running
    running.close()


ITEM = make_item(RED)
RUN = make_media_ids(ITEM.digest)
BOS = 256


@pytest.mark.parametrize("special", [*models.SPECIALS, *models.USER_DEFINED])
def test_the_engine_refuses_text_that_it_would_read_as_a_special_token(
    runner: EngineRunner, special: str
) -> None:
    spelled = [*special.encode()]  # one token for each byte
    job = make_job([BOS, *RUN, *spelled, 97], media=(ITEM,))
    error = runner.run(get_error(runner.engine.admit(job)))
    assert isinstance(error, BadRequest)
    assert "special tokens" in error.message


def test_the_engine_refuses_prompts_that_end_in_media(runner: EngineRunner) -> None:
    last = make_job([BOS, 97, *RUN], media=(ITEM,))
    assert "must not end" in runner.run(get_error(runner.engine.admit(last))).message

    async def start() -> None:
        await anext(runner.engine.generate(last))

    assert "must not end" in runner.run(get_error(start())).message
    unknown = make_job([BOS, *make_media_ids("00" * 32), 97], media=(ITEM,))
    assert "does not have" in runner.run(get_error(runner.engine.admit(unknown))).message


def test_the_engine_refuses_its_own_marker_in_text(runner: EngineRunner) -> None:
    _, body = runner.run(runner.engine.client.get("/props"))
    marker: str = json.loads(body)["media_marker"]
    job = make_job([BOS, *RUN, *marker.encode(), 97], media=(ITEM,))
    assert isinstance(runner.run(get_error(runner.engine.admit(job))), BadRequest)

    async def start() -> None:
        await anext(runner.engine.generate(job))

    assert "marker" in runner.run(get_error(start())).message


def test_the_bos_token_is_not_doubled(runner: EngineRunner) -> None:
    """The engine adds it to a text by itself, so it is left out of the text that is sent."""
    prompt = [BOS, 97, *RUN, 98]
    output = runner.run(generate(runner.engine, prompt, media=(ITEM,), max_tokens=1))
    reported = [step.prompt_tokens for step in output.steps if step.prompt_tokens]
    assert reported == [3 + models.MLP_TOKENS]
    again = runner.run(generate(runner.engine, prompt, media=(ITEM,), max_tokens=1))
    assert again.count_cached() == 3 + models.MLP_TOKENS - 1


def test_an_item_is_counted_once_in_each_cache_scope(
    runner: EngineRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the time that counting takes would tell what other owners have sent."""
    client = runner.engine.client
    post_to_server, paths = client.post, []

    async def record_path(path: str, body: Any) -> Any:
        paths.append(path)
        return await post_to_server(path, body)

    item = make_item(make_image(size=(9, 9)))
    prompt = [BOS, *make_media_ids(item.digest), 97]

    async def count_in(scope: str) -> int:
        restore_cache_scope(scope)
        paths.clear()
        assert (await runner.engine.count_prompt(prompt, [item])).tokens == 2 + models.MLP_TOKENS
        return paths.count(COUNT_PATH)

    monkeypatch.setattr(client, "post", record_path)
    counts = [runner.run(count_in(scope)) for scope in ("ann", "ann", "robert", "", "ann")]
    assert counts == [2, 0, 2, 2, 0]
