"""The token APIs of three servers, from their side: requests as jobs, and steps as frames.

A `WorkerApi` is one request. It turns the body into a `Job` of the scripted engine, and each `Step`
into the frames that the real server would send for it: llama-server a frame for each token, vLLM
one for each step, SGLang the whole answer so far. A grammar that allows a single answer is obeyed;
that is how engines find out whether a server reads grammars.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec

from dragoman.testing.byte_tokenizer import ByteTokenizer
from dragoman.types import Job, Json, Logprob, Sampling, Step

WorkerKind: TypeAlias = Literal["llama-server", "vllm", "sglang"]
encode = msgspec.json.Encoder().encode
# their names of sampling fields -> ours, as far as a script can tell them apart
SAMPLING_NAMES = {
    "n_predict": "max_tokens",
    "max_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "min_tokens": "min_tokens",
    "min_new_tokens": "min_tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "seed": "seed",
    "sampling_seed": "seed",
    "ignore_eos": "ignore_eos",
    "stop_token_ids": "stop_token_ids",
}
_FORCED = re.compile(r"^(?:start|whole_answer): ((?:<\[\d+\]> ?)+)$", re.MULTILINE)


class WorkerApi:
    """One request of a kind of server: its job, and the frames of its steps."""

    def __init__(self, path: str, body: Mapping[str, Json], tokenizer: ByteTokenizer) -> None:
        self.path = path
        self.body = body
        self.tokenizer = tokenizer
        self.counts: dict[int, int] = {}  # tokens of each choice so far
        self.prompt_tokens = 0
        self.cached_tokens = 0

    @property
    def grammar(self) -> str | None:
        raise NotImplementedError

    def make_job(self) -> Job:
        raise NotImplementedError

    def make_frames(self, step: Step) -> Iterator[Json]:
        raise NotImplementedError

    def make_end(self) -> Iterator[Json]:
        """Yield the frames after the last step; a string is sent as it is."""
        return iter(())

    def count(self, step: Step, ids: list[int]) -> int:
        """Count the tokens of a step, and note what it says about the prompt."""
        if step.prompt_tokens is not None:
            self.prompt_tokens, self.cached_tokens = step.prompt_tokens, step.cached_tokens or 0
        self.counts[step.choice] = self.counts.get(step.choice, 0) + len(ids)
        return self.counts[step.choice]

    def list_ids(self, step: Step) -> list[int]:
        """Return the ids of a step with the stop token, which servers count as part of it."""
        if step.finish != "stop":
            return step.ids
        return [*step.ids, step.stop_id if step.stop_id is not None else self.eos_id]

    @property
    def eos_id(self) -> int:
        return self.tokenizer.eos_id if self.tokenizer.eos_id is not None else 0

    def read_forced_ids(self) -> list[int] | None:
        """Return the ids of a grammar that allows nothing but them."""
        match = _FORCED.search(self.grammar or "")
        return None if match is None else [int(each) for each in re.findall(r"\d+", match[1])]


def read_sampling(fields: Mapping[str, Json]) -> Sampling:
    """Return the sampling of a request; -1 is how some servers say "no limit" or "off"."""
    values = {
        ours: fields[theirs]
        for theirs, ours in SAMPLING_NAMES.items()
        if fields.get(theirs) is not None and fields[theirs] != -1
    }
    if "stop_token_ids" in values:
        values["stop_token_ids"] = tuple(values["stop_token_ids"])
    return Sampling(**values)


class LlamaServerRequest(WorkerApi):
    """llama-server's `/completion`."""

    @property
    def grammar(self) -> str | None:
        return self.body.get("grammar")

    def make_job(self) -> Job:
        probs = self.body.get("n_probs") or 0
        return Job(
            id="llama",
            prompt=self.body["prompt"],
            sampling=read_sampling(self.body),
            logprobs=probs or None,
            cache_prompt=self.body.get("cache_prompt", True),
        )

    def make_frames(self, step: Step) -> Iterator[Json]:
        """Yield a frame for each token, and the end; the progress of the prompt comes first."""
        if step.prompt_tokens is not None and self.body.get("return_progress"):
            done = {"total": step.prompt_tokens, "processed": step.prompt_tokens, "time_ms": 1}
            yield self._make(tokens=[], prompt_progress=done | {"cache": step.cached_tokens or 0})
        self.count(step, [])
        for index, token in enumerate(self.list_ids(step)):
            self.counts[step.choice] += 1
            piece = self.tokenizer.pieces[token].decode(errors="replace")
            frame = self._make(tokens=[token], content="" if token == self.eos_id else piece)
            if step.logprobs and index < len(step.logprobs):
                frame["completion_probabilities"] = [_write_logprob(step.logprobs[index])]
            elif self.body.get("n_probs"):
                frame["completion_probabilities"] = [_write_logprob(Logprob(token, -0.5))]
            yield frame
        if step.finish is not None:
            kind = "limit" if step.finish == "length" else "eos"
            yield self._make(tokens=[], stop=True) | {"stop_type": kind}

    def _make(self, tokens: list[int], content: str = "", **fields: Json) -> dict[str, Json]:
        return {
            "index": 0,
            "content": content,
            "tokens": tokens,
            "stop": False,
            "tokens_predicted": self.counts.get(0, 0),
            "tokens_evaluated": self.prompt_tokens,
        } | fields


def _write_logprob(logprob: Logprob) -> Json:
    top = [{"id": other.id, "token": "", "logprob": other.logprob} for other in logprob.top]
    return {"id": logprob.id, "token": "", "logprob": logprob.logprob, "top_logprobs": top}


class VllmRequestApi(WorkerApi):
    """vLLM's `/inference/v1/generate` and `/v1/completions`."""

    @property
    def is_generate(self) -> bool:
        return self.path.startswith("/inference")

    @property
    def fields(self) -> Mapping[str, Json]:
        return self.body["sampling_params"] if self.is_generate else self.body

    @property
    def grammar(self) -> str | None:
        return (self.fields.get("structured_outputs") or {}).get("grammar")

    def make_job(self) -> Job:
        fields = self.fields
        return Job(
            id=self.body.get("request_id") or "vllm",
            prompt=self.body["token_ids" if self.is_generate else "prompt"],
            sampling=read_sampling(fields),
            n=fields.get("n") or 1,
            logprobs=fields.get("logprobs"),
            cache_prompt=not (
                fields.get("skip_reading_prefix_cache") or self.body.get("cache_salt")
            ),
        )

    def make_frames(self, step: Step) -> Iterator[Json]:
        ids = self.list_ids(step)
        self.count(step, ids)
        choice: dict[str, Json] = {
            "index": step.choice,
            "finish_reason": step.finish,
            "stop_reason": None,
        }
        if self.is_generate or self.body.get("return_token_ids"):
            choice["token_ids"] = ids
        if not self.is_generate:
            choice["text"] = self.tokenizer.decode(step.ids)
        if self.fields.get("logprobs") is not None:
            logprobs = [*step.logprobs, *(Logprob(token, -0.5) for token in ids)][: len(ids)]
            choice["logprobs"] = self._write_logprobs(logprobs)
        yield {"choices": [choice]}

    def _write_logprobs(self, logprobs: list[Logprob]) -> Json:
        if self.is_generate:
            return {"content": [_write_ranked(logprob) for logprob in logprobs]}
        return {
            "tokens": [f"token_id:{logprob.id}" for logprob in logprobs],
            "token_logprobs": [logprob.logprob for logprob in logprobs],
            "top_logprobs": [
                {f"token_id:{other.id}": other.logprob for other in logprob.top}
                for logprob in logprobs
            ],
        }

    def make_end(self) -> Iterator[Json]:
        usage = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": sum(self.counts.values()),
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        yield {"choices": [], "usage": usage}
        yield "[DONE]"


def _write_ranked(logprob: Logprob) -> Json:
    """Write a logprob with its alternatives: the sampled token comes first."""
    top = [
        {"token_id": other.id, "logprob": other.logprob, "rank": rank}
        for rank, other in enumerate(logprob.top, 1)
    ]
    return {
        "token_id": logprob.id,
        "logprob": logprob.logprob,
        "rank": 1,
        "top_logprobs": top,
    }


class SglangRequest(WorkerApi):
    """SGLang's `/generate`."""

    is_cumulative = True

    def __init__(self, path: str, body: Mapping[str, Json], tokenizer: ByteTokenizer) -> None:
        super().__init__(path, body, tokenizer)
        self._ids: list[int] = []
        self._logprobs: list[Logprob] = []

    @property
    def grammar(self) -> str | None:
        grammar: str | None = self.body["sampling_params"].get("ebnf")
        return grammar

    def make_job(self) -> Job:
        top = self.body.get("top_logprobs_num") if self.body.get("return_logprob") else None
        return Job(
            id=self.body.get("rid") or "sglang",
            prompt=self.body["input_ids"],
            sampling=read_sampling(self.body["sampling_params"]),
            logprobs=top,
            cache_prompt=not self.body.get("extra_key"),
        )

    def make_frames(self, step: Step) -> Iterator[Json]:
        ids = self.list_ids(step)
        total = self.count(step, ids)
        logprobs = [*step.logprobs, *(Logprob(token, -0.5) for token in ids)][: len(ids)]
        if self.is_cumulative:
            self._ids += ids
            self._logprobs += logprobs
            ids, logprobs = self._ids, self._logprobs
        meta: dict[str, Json] = {
            "id": self.body.get("rid"),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": total,
            "cached_tokens": self.cached_tokens,
            "finish_reason": self._write_finish(step),
        }
        if self.body.get("return_logprob"):
            meta["output_token_logprobs"] = [
                [each.logprob, token, None] for token, each in zip(ids, logprobs, strict=True)
            ]
            meta["output_top_logprobs"] = [
                [[other.logprob, other.id, None] for other in each.top] for each in logprobs
            ]
        yield {"text": self.tokenizer.decode(ids), "output_ids": ids, "meta_info": meta}

    def _write_finish(self, step: Step) -> Json:
        if step.finish is None:
            return None
        if step.finish == "length":
            return {"type": "length", "length": sum(self.counts.values())}
        return {"type": "stop", "matched": self.list_ids(step)[-1]}

    def make_end(self) -> Iterator[Json]:
        yield "[DONE]"


class IncrementalSglangRequest(SglangRequest):
    """The same with `--incremental-streaming-output`."""

    is_cumulative = False
