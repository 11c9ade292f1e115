"""Reranks with both versions of the `cohere` client; run by a Python that has it.

Arguments: the URL of the server and the key. Prints the results as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import cohere

QUERY = "what is the cat"
DOCUMENTS = ["the dog ran fast", "blue sky", "the cat sat on the mat"]


def list_results(response: Any) -> list[tuple[int, float]]:
    return [(result.index, result.relevance_score) for result in response.results]


def main(url: str, key: str) -> None:
    second = cohere.ClientV2(api_key=key, base_url=url)
    first = cohere.Client(api_key=key, base_url=url)
    fields: dict[str, Any] = {"model": "rank", "query": QUERY}
    objects = [{"text": text} for text in DOCUMENTS]
    returned = first.rerank(documents=objects, return_documents=True, **fields)
    output: dict[str, Any] = {
        "v2": list_results(second.rerank(documents=DOCUMENTS, max_tokens_per_doc=50, **fields)),
        "v2 best": list_results(second.rerank(documents=DOCUMENTS, top_n=1, **fields)),
        "v1": list_results(returned),
        "v1 documents": [result.document.text for result in returned.results],
    }
    try:
        second.rerank(documents=[], **fields)
    except cohere.errors.BadRequestError as error:
        output["error"] = error.body["message"]
    try:
        cohere.ClientV2(api_key="wrong", base_url=url).rerank(documents=DOCUMENTS, **fields)
    except cohere.errors.UnauthorizedError as error:
        output["unauthorized"] = error.status_code
    print(json.dumps(output))


if __name__ == "__main__":
    main(*sys.argv[1:])
