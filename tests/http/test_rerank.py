"""Reranking and scores on the wire, with scripted engines and with small real models."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.testing import ScriptedEngine
from dragoman.types import Capabilities, Job, Step
from dragoman.types.text_pair import TextPair
from tests.support.pooling_models import MEAN, RANK, EncoderShape, serve_file, write_encoder
from tests.support.serving import RunningServer, serve_scripted

QUERY = "what is the cat"
DOCUMENTS = ["the dog ran fast", "blue sky", "the cat sat on the mat", "a red apple tree"]
COSINE = "cosine"
SHORT: dict[str, Any] = {"query": "a", "documents": ["b"]}


class PlainScorer:
    """An engine without a tokenizer, whose scores are the lengths of documents."""

    capabilities = Capabilities(scores=True, generates=False)

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        yield Step(text="never", finish="stop")

    async def score(self, pairs: list[TextPair]) -> list[float]:
        return [len(pair.document) / 100 for pair in pairs]


@pytest.fixture(scope="module")
def scorer() -> Iterator[RunningServer]:
    engine = ScriptedEngine("x", tokens=True, context=64, scores=True, generates=False)
    with serve_scripted(engine) as running:
        yield running


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = write_encoder(tmp_path_factory.mktemp("rank") / "rank.gguf", RANK)
    with serve_file(path) as running:
        yield running


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = write_encoder(tmp_path_factory.mktemp("embed") / "embed.gguf", MEAN)
    with serve_file(path) as running:
        yield running


def post(server: RunningServer, path: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=fields, timeout=60)


def rerank(server: RunningServer, path: str = "/v1/rerank", **fields: Any) -> Any:
    fields = {"query": QUERY, "documents": DOCUMENTS} | fields
    response = post(server, path, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def get_order(answer: Any) -> list[int]:
    return [result["index"] for result in answer["results"]]


# against what the engine computes itself


def compute_rank_scores(path: Path) -> list[float]:
    """Return the scores of the native server's own reranking."""
    lib = pytest.importorskip("xllamacpp")
    params = lib.CommonParams()
    params.model.path = str(path)
    params.embedding = True
    params.pooling_type = lib.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
    params.n_ctx = params.n_batch = params.n_ubatch = EncoderShape().context
    params.n_parallel = params.cpuparams.n_threads = 1
    params.verbosity, params.warmup = 0, False
    answer = lib.Server(params).handle_rerank({"query": QUERY, "documents": DOCUMENTS})
    results = {result["index"]: result["relevance_score"] for result in answer["results"]}
    return [1 / (1 + math.exp(-results[index])) for index in range(len(DOCUMENTS))]


def test_rerank_scores_are_those_of_the_native_server(
    ranker: RunningServer, tmp_path: Path
) -> None:
    expected = compute_rank_scores(write_encoder(tmp_path / "rank.gguf", RANK))
    answer = rerank(ranker)
    scores = {result["index"]: result["relevance_score"] for result in answer["results"]}
    assert [scores[index] for index in range(len(DOCUMENTS))] == pytest.approx(expected, abs=1e-4)
    assert get_order(answer) == sorted(range(len(DOCUMENTS)), key=lambda i: -expected[i])
    scored = post(ranker, "/v1/score", text_1=QUERY, text_2=DOCUMENTS).json()
    assert [entry["score"] for entry in scored["data"]] == pytest.approx(expected, abs=1e-4)
    assert answer["usage"] == scored["usage"]


def test_embedding_models_rerank_by_cosine_and_say_so(embedder: RunningServer) -> None:
    vectors = [
        entry["embedding"]
        for entry in post(embedder, "/v1/embeddings", input=[QUERY, *DOCUMENTS]).json()["data"]
    ]
    query, *documents = vectors
    expected = [sum(a * b for a, b in zip(query, other, strict=True)) for other in documents]
    response = post(embedder, "/v1/rerank", query=QUERY, documents=DOCUMENTS)
    assert COSINE in response.headers["x-dragoman-warning"]
    answer = response.json()
    scores = {result["index"]: result["relevance_score"] for result in answer["results"]}
    assert [scores[index] for index in range(len(DOCUMENTS))] == pytest.approx(expected, abs=1e-5)
    assert get_order(answer) == sorted(range(len(DOCUMENTS)), key=lambda i: -expected[i])


def test_pairs_of_two_lists_are_scored_one_by_one(embedder: RunningServer) -> None:
    pairs = [(first, second) for first in DOCUMENTS for second in DOCUMENTS]
    queries, documents = map(list, zip(*pairs, strict=True))
    data = post(embedder, "/v1/score", queries=queries, documents=documents).json()["data"]
    for entry, (first, second) in zip(data, pairs, strict=True):
        alone = post(embedder, "/v1/score", text_1=first, text_2=second).json()["data"]
        assert entry["score"] == pytest.approx(alone[0]["score"], abs=1e-5)
        assert (entry["score"] > 0.9999) == (first == second)


@pytest.mark.parametrize("text", ["[SEP]", "[CLS] [MASK]", "the [SEP] cat"])
def test_special_tokens_in_documents_stay_text(text: str, ranker: RunningServer) -> None:
    spaced = text.replace("[", "[ ").replace("]", " ]")  # surely no special token
    answer = rerank(ranker, documents=[text, spaced])
    first, second = answer["results"]
    assert first["relevance_score"] == pytest.approx(second["relevance_score"], abs=1e-6)


def test_models_that_cannot_generate_say_so(ranker: RunningServer, embedder: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    for server, word in ((ranker, "scores"), (embedder, "embeds")):
        response = post(server, "/v1/chat/completions", **body)
        assert response.status_code == 400
        assert word in response.json()["error"]["message"]
    listed = httpx.get(f"{ranker.url}/v1/models").json()["data"][0]
    assert "rerank" in listed["capabilities"]
    assert "completion" not in listed["capabilities"]
    assert post(ranker, "/v1/embeddings", input="x").status_code == 400


# shapes


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_all_paths_have_one_shape(path: str, scorer: RunningServer) -> None:
    answer = rerank(scorer, path)
    assert set(answer) == {"id", "object", "model", "results", "usage", "meta"}
    assert set(answer["results"][0]) == {"index", "relevance_score"}
    assert answer["meta"]["api_version"]["version"] == ("2" if path == "/v2/rerank" else "1")
    assert answer["usage"]["total_tokens"] == sum(len(QUERY + text) for text in DOCUMENTS)
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(("top_n", "count"), [(1, 1), (3, 3), (99, 4), (0, 4), (None, 4)])
def test_top_n_returns_the_best_documents_alone(
    top_n: int | None, count: int, scorer: RunningServer
) -> None:
    whole = get_order(rerank(scorer))
    assert get_order(rerank(scorer, top_n=top_n)) == whole[:count]


def test_documents_come_back_as_they_were_sent(scorer: RunningServer) -> None:
    documents = [{"text": "one", "id": 7}, "two"]
    answer = rerank(scorer, documents=documents, return_documents=True)
    for result in answer["results"]:
        document = documents[result["index"]]
        expected = document if isinstance(document, dict) else {"text": document}
        assert result["document"] == expected


def test_objects_are_ranked_by_their_fields(scorer: RunningServer) -> None:
    as_text = rerank(scorer, documents=["title: a\nbody: b", "x"])
    as_object = rerank(
        scorer, documents=[{"title": "a", "body": "b", "c": 1}, "x"], rank_fields=["title", "body"]
    )
    assert as_object["results"] == as_text["results"]


def test_documents_with_equal_scores_keep_their_order(scorer: RunningServer) -> None:
    assert get_order(rerank(scorer, documents=["same"] * 40)) == list(range(40))


def test_engines_without_token_ids_get_texts() -> None:
    with serve_scripted(PlainScorer()) as server:
        assert get_order(rerank(server, documents=["aa", "aaaa", "a"])) == [1, 0, 2]
        response = post(server, "/v1/rerank", query="q", documents=["a"], max_tokens_per_doc=3)
        assert response.json()["error"]["param"] == "max_tokens_per_doc"


# limits


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"documents": ["d" * 40], "max_tokens_per_doc": 7}, 15 + 7),
        ({"documents": ["d" * 400], "max_tokens_per_doc": 7}, 15 + 7),
        ({"documents": ["d" * 400], "truncate_prompt_tokens": 20}, 20),
        ({"documents": ["d" * 400], "truncate_prompt_tokens": -1}, 63),
        ({"documents": ["d" * 400], "truncate_prompt_tokens": 30, "max_tokens_per_doc": 2}, 17),
    ],
)
def test_long_documents_are_cut_on_request(
    fields: dict[str, Any], tokens: int, scorer: RunningServer
) -> None:
    answer = rerank(scorer, **fields)
    assert answer["usage"]["prompt_tokens"] == tokens
    short = rerank(scorer, documents=["d" * (tokens - len(QUERY))])
    assert short["results"] == answer["results"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a"}, "documents"),
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": 1, "documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": "b"}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b"] * 2049}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b", ""]}, "documents[1]"),
        ("/v1/rerank", {"query": "a", "documents": [{"title": "b"}]}, "documents[0].text"),
        ("/v1/rerank", {"query": "a", "documents": [{"text": 5}]}, "documents[0].text"),
        ("/v1/rerank", {"query": "a", "documents": [{"image": "x"}]}, "documents[0].image"),
        ("/v1/rerank", {"query": "a", "documents": ["b", "c" * 100]}, "documents[1]"),
        ("/v1/rerank", {"query": "a" * 100, "documents": ["b"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
        ("/v1/rerank", SHORT | {"max_tokens_per_doc": 0}, "max_tokens_per_doc"),
        ("/v1/rerank", SHORT | {"max_chunks_per_doc": 2}, "max_chunks_per_doc"),
        ("/v1/rerank", SHORT | {"use_activation": False}, "use_activation"),
        ("/v1/rerank", SHORT | {"instruction": "x"}, "instruction"),
        ("/v1/rerank", {"query": "aaaa", "documents": ["b"], "truncate_prompt_tokens": 4}, "query"),
        ("/v2/rerank", {"query": "a", "documents": ["b", "c" * 100]}, "documents[1]"),
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/v1/score", {"text_2": "a"}, "text_1"),
        ("/v1/score", {"text_1": "a", "queries": "a", "text_2": "b"}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["b", "c", "d"]}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": "b"}, "text_1"),
        ("/v1/score", {"text_1": ["a", ""], "text_2": ["b", "c"]}, "text_1[1]"),
        ("/v1/score", {"text_1": "a", "text_2": ["b", "c" * 100]}, "text_2[1]"),
    ],
)  # fmt: skip
def test_mistakes_are_named(
    path: str, fields: dict[str, Any], param: str, scorer: RunningServer
) -> None:
    response = post(scorer, path, **fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    if path == "/v2/rerank":
        assert response.json()["message"] == error["message"]


def test_models_that_generate_are_refused_by_name() -> None:
    with serve_scripted() as server:
        for path, fields in (
            ("/v1/rerank", {"query": "a", "documents": ["b"]}),
            ("/v2/rerank", {"query": "a", "documents": ["b"]}),
            ("/v1/score", {"text_1": "a", "text_2": "b"}),
        ):
            response = post(server, path, **fields)
            assert response.status_code == 400
            assert "`scripted` generates text" in response.json()["error"]["message"]


def test_all_documents_together_are_limited() -> None:
    engine = ScriptedEngine("x", tokens=True, context=8192, scores=True, generates=False)
    with serve_scripted(engine) as server:
        response = post(server, "/v1/rerank", query="q" * 4000, documents=["b"] * 120)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "documents"


class FaultyScorer(PlainScorer):
    """An engine that returns what the test says."""

    def __init__(self, scores: list[float]) -> None:
        self.scores = scores

    async def score(self, pairs: list[TextPair]) -> list[float]:
        return self.scores


@pytest.mark.parametrize("scores", [[], [math.nan], [math.inf], [0.5, 0.5]])
def test_scores_that_are_no_numbers_are_an_error(scores: list[float]) -> None:
    with serve_scripted(FaultyScorer(scores)) as server:
        response = post(server, "/v1/rerank", query="q", documents=["a"])
        assert response.status_code == 500
        assert json.loads(response.content)["error"]["code"]
