"""Two jobs that a server is tried with before it is used.

One asks for a token, and shows whether answers have ids. The other asks for a few tokens under a
grammar that allows nothing else: a server that ignores the grammar, or cannot read it, shows that
without harm. llama-server is the exception, which ends its process if it was built without
llguidance; nothing tells how it was built, so it is tried only if the operator says so.
"""

from __future__ import annotations

from dragoman.engines.llamacpp.params import build_forcing_grammar
from dragoman.engines.remote.settings import RemoteSettings, Upstream
from dragoman.tokenizers.vocabulary import Vocabulary
from dragoman.types import DEFAULT_SAMPLING, Job, Sampling

FORCED_TOKENS = 3
# prompts of servers that take text
TEXT_PROBES = {"text": "a", "chat": '{"messages":[{"role":"user","content":"a"}]}'}


def may_try_grammar(settings: RemoteSettings, upstream: Upstream) -> bool:
    """Whether a server may be sent a grammar at all."""
    if upstream.protocol in ("text", "chat"):
        return False
    if settings.grammars is not None:
        return settings.grammars
    return upstream.protocol != "llama-server"


def make_token_probe(upstream: Upstream, vocabulary: Vocabulary) -> Job:
    """Make a job of one token."""
    prompt = TEXT_PROBES.get(upstream.protocol) or list_ordinary_ids(vocabulary)[:1]
    return _make_probe(prompt, 1)


def make_grammar_probe(vocabulary: Vocabulary) -> Job:
    """Make a job whose grammar allows a few unlikely tokens and nothing else."""
    ids = list_ordinary_ids(vocabulary)
    forced = ids[-FORCED_TOKENS:]
    return _make_probe(ids[:1], len(forced), build_forcing_grammar(forced))


def list_ordinary_ids(vocabulary: Vocabulary) -> list[int]:
    """Return tokens that are plain letters."""
    special = vocabulary.control | vocabulary.eos_ids | frozenset(vocabulary.specials.values())
    return [
        token
        for token, piece in enumerate(vocabulary.pieces)
        if len(piece) == 1 and piece.isalpha() and token not in special
    ] or [0]


def _make_probe(prompt: list[int] | str, max_tokens: int, grammar: str | None = None) -> Job:
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens).with_defaults(DEFAULT_SAMPLING)
    return Job(
        id="dragoman-probe",
        prompt=prompt,
        sampling=sampling,
        grammar=grammar,
        cache_prompt=False,
    )
