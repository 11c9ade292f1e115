"""The checks of what an engine computes besides answers: vectors and scores."""

from __future__ import annotations

import math

from dragoman.testing.subject import PROMPTS, CheckSkipped, EngineUnderTest
from dragoman.types.text_pair import TextPair


async def embeds(subject: EngineUnderTest) -> None:
    """One vector of the promised length for each input, in order, the same for the same input."""
    size = subject.capabilities.embeddings
    if not size:
        raise CheckSkipped("the engine does not embed")
    embed = getattr(subject.engine, "embed", None)
    assert embed is not None, "`capabilities` promise embeddings, but there is no `embed`"
    inputs = [await subject.make_prompt(PROMPTS[index]) for index in (0, 1, 0)]
    vectors = await subject.wait(embed(inputs), "`embed` did not return")
    lengths = [len(vector) for vector in vectors]
    assert lengths == [size] * 3, (
        f"3 inputs gave vectors of {lengths} numbers; `capabilities` promise {size}"
    )
    assert all(math.isfinite(value) for vector in vectors for value in vector), (
        "a vector holds something that is not a finite number"
    )
    distances = [math.dist(vectors[0], vector) for vector in vectors]
    assert distances[2] < 1e-2 * max(distances[1], 1e-6), (
        "the same input twice gave two different vectors"
    )


async def scores(subject: EngineUnderTest) -> None:
    """One score between 0 and 1 for each pair, in order, the same for the same pair."""
    if not subject.capabilities.scores:
        raise CheckSkipped("the engine does not score")
    score = getattr(subject.engine, "score", None)
    assert score is not None, "`capabilities` promise scores, but there is no `score`"
    texts = [PROMPTS[index] for index in (0, 1, 0)]
    prompts = [await subject.make_prompt(text) for text in texts]
    pairs = [
        TextPair(prompt + prompts[0], len(prompt), text, PROMPTS[0])
        if isinstance(prompt, list) and isinstance(prompts[0], list)
        else TextPair(query=text, document=PROMPTS[0])
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    values = await subject.wait(score(pairs), "`score` did not return")
    assert len(values) == len(pairs), f"3 pairs gave {len(values)} scores"
    assert all(0 <= value <= 1 for value in values), f"scores must be from 0 to 1: {values}"
    assert abs(values[0] - values[2]) < 1e-3, "the same pair twice gave two different scores"
