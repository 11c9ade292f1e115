"""Splits a step of an engine into steps of one token."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from dragoman.types import Step


def split_step(step: Step) -> Iterator[Step]:
    """Split a step into steps of one token, so that a stop always occurs at the same token."""
    if step.spans or step.text is not None:
        parts = list(_split_text_step(step)) or [step]
    elif step.tokens in (0, len(step.ids)):
        logprobs = step.logprobs if len(step.logprobs) == len(step.ids) else None
        parts = [
            Step(ids=[token], tokens=1, logprobs=[logprobs[index]] if logprobs else [])
            for index, token in enumerate(step.ids)
        ]
    else:
        parts = [step]
    yield from parts[:-1]
    end = {"finish": step.finish, "stop_id": step.stop_id, "drafts": step.drafts}
    yield replace(parts[-1], **end)


def is_single(step: Step) -> bool:
    """Whether a step has at most one token, as far as that is known."""
    return len(step.ids) < 2 and len(step.logprobs) < 2 and not step.spans


def _split_text_step(step: Step) -> Iterator[Step]:
    text, ids, logprobs = step.text or "", step.ids, step.logprobs
    start = first = 0
    for characters, tokens in step.spans or _find_token_spans(step):
        yield Step(
            text=text[start : start + characters],
            ids=ids[first : first + tokens],
            tokens=tokens,
            logprobs=logprobs[first : first + tokens],
        )
        start, first = start + characters, first + tokens


def _find_token_spans(step: Step) -> list[tuple[int, int]]:
    """Derive the spans of an unmerged step from its logprobs, if those spell out its text."""
    texts = [logprob.text or "" for logprob in step.logprobs]
    if len(texts) != step.tokens or "".join(texts) != step.text:
        return []
    return [(len(text), 1) for text in texts]
