"""Cohere's own client reranks with a rank model on the real engine."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.support.paths import ROOT
from tests.support.pooling_models import RANK, serve_file, write_encoder

PYTHON = Path(os.environ.get("COHERE_FOLDER", ROOT / ".cohere")) / "bin" / "python"
KEY = "sk-cohere-0123456789abcdef"
QUERY = "what is the cat"
DOCUMENTS = ["the dog ran fast", "blue sky", "the cat sat on the mat"]


def test_both_versions_of_the_client(tmp_path: Path) -> None:
    path = write_encoder(tmp_path / "rank.gguf", RANK)
    with serve_file(path, api_key=(KEY,)) as server:
        script = str(ROOT / "tests" / "cohere_client" / "rerank.py")
        result = subprocess.run(
            [str(PYTHON), script, server.url, KEY], capture_output=True, text=True, timeout=120
        )
        assert result.returncode == 0, result.stderr
        body = {"query": QUERY, "documents": DOCUMENTS}
        headers = {"authorization": f"Bearer {KEY}"}
        answer = httpx.post(f"{server.url}/v1/rerank", json=body, headers=headers).json()
    output = json.loads(result.stdout)
    expected = {entry["index"]: entry["relevance_score"] for entry in answer["results"]}
    for version in ("v1", "v2"):
        assert [index for index, _ in output[version]] == list(expected)
        assert dict(output[version]) == pytest.approx(expected, abs=1e-5)
    assert [index for index, _ in output["v2 best"]] == list(expected)[:1]
    assert output["v1 documents"] == [DOCUMENTS[index] for index in expected]
    assert output["error"] == "`documents` must have at least 1 entries."
    assert output["unauthorized"] == 401
