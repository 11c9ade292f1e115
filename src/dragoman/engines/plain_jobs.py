"""Jobs that are accepted without asking the engine.

Most jobs are a prompt of token ids with ordinary sampling. An engine that accepts all of these as
long as they fit says how large its vocabulary is (`Capabilities.vocabulary_size`). They are then
checked in the server's own process: a call of an engine in another process takes a fifth of the
time in which a request begins.
"""

from __future__ import annotations

from dragoman.types import Capabilities, Job, Sampling

MAX_TEMPERATURE = 2.0  # that every engine takes


def is_accepted(job: Job, capabilities: Capabilities) -> bool:
    """Whether the engine accepts this job for certain; otherwise `admit` decides."""
    prompt, size = job.prompt, capabilities.vocabulary_size
    if size is None or isinstance(prompt, str) or not prompt or not _is_plain(job):
        return False
    fits = capabilities.context is None or len(prompt) < capabilities.context
    return capabilities.generates and fits and min(prompt) >= 0 and max(prompt) < size


def _is_plain(job: Job) -> bool:
    """Whether a job has nothing that an engine must look at."""
    has_extras = job.grammar is not None or job.media or job.lora
    reports_logprobs = job.logprobs is not None or job.prompt_logprobs is not None
    return job.n == 1 and not has_extras and not reports_logprobs and _is_ordinary(job.sampling)


def _is_ordinary(sampling: Sampling) -> bool:
    names_tokens = sampling.logit_bias or sampling.stop_token_ids
    is_hot = (sampling.temperature or 0.0) > MAX_TEMPERATURE
    return not names_tokens and not sampling.samplers and not is_hot
