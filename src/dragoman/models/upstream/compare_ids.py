"""Compares our tokenizer with that of an upstream server, through the server's `/tokenize`.

A tokenizer that differs anywhere turns prompts into other prompts without any sign, so one
difference is enough to refuse a server. Texts are compared that distinguish tokenizers (spaces,
digits, emoji, scripts), and the spellings of special tokens. The sizes of vocabularies prove
nothing: servers pad them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from dragoman.errors import ModelBroken
from dragoman.models.upstream.probe_client import ProbeClient
from dragoman.models.upstream.server_info import ServerInfo
from dragoman.tokenizers.tokenizer import (
    PROBES,
    AnyTokenizer,
    Tokenizer,
    TokenizerDifference,
)

MAX_SPECIALS = 48  # of which some models have thousands
MAX_SHOWN_IDS = 6

# Returns the ids of a text; with True, spellings of special tokens become these.
Tokenize = Callable[[str, bool], list[int]]


def make_tokenize(client: ProbeClient, info: ServerInfo) -> Tokenize:
    """Return a function that asks the server for the ids of a text."""

    def tokenize(text: str, special: bool) -> list[int]:
        if info.kind in ("llama-server", "dragoman"):
            body = {"content": text, "add_special": False, "parse_special": special}
        else:
            body = {"prompt": text, "add_special_tokens": False}
        answer = client.post(info.tokenize_path, {"model": info.model, **body})
        ids = answer.fields.get("tokens")
        if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
            raise ModelBroken(
                f"The upstream server does not tokenize: {info.tokenize_path} answers "
                f"{answer.status}."
            )
        return ids

    return tokenize


def compare_ids(
    tokenizer: AnyTokenizer, tokenize: Tokenize, template: str | None = None
) -> tuple[list[TokenizerDifference], dict[str, list[int]]]:
    """Return the texts whose ids differ, and the server's ids of all compared texts.

    The special tokens that the template contains are compared first.
    """
    differences, seen = [], {}
    plain = PROBES if isinstance(tokenizer, Tokenizer) else ()
    for text in plain:
        seen[text] = tokenize(text, False)
        ours = tokenizer.encode_now(text)
        if seen[text] != ours:
            differences.append(TokenizerDifference(text, ours, seen[text]))
    for text in choose_specials(tokenizer.specials, template or ""):
        seen[text] = tokenize(text, True)
        if seen[text] != [tokenizer.specials[text]]:
            differences.append(TokenizerDifference(text, [tokenizer.specials[text]], seen[text]))
    return differences, seen


def choose_specials(specials: Mapping[str, int], template: str) -> Iterable[str]:
    """Return the special tokens to compare, those of the template first."""
    ordered = sorted(specials, key=lambda text: text not in template)
    return islice((text for text in ordered if text.strip()), MAX_SPECIALS)


def check_ids(
    tokenizer: AnyTokenizer, tokenize: Tokenize, info: ServerInfo, place: str
) -> dict[str, list[int]]:
    """Return the server's ids of the probe texts, or raise a `ModelBroken` if one differs."""
    size = info.vocabulary_size
    if size is not None and tokenizer.vocab_size > size:
        raise make_mismatch_error(
            place, f"it has {tokenizer.vocab_size} tokens and the server's has {size}"
        )
    differences, seen = compare_ids(tokenizer, tokenize, info.template)
    if differences:
        first = differences[0]
        raise make_mismatch_error(
            place,
            f"{len(differences)} of {len(seen)} texts have other tokens, such as {first.text!r}: "
            f"{_show_ids(first.ours)} here, {_show_ids(first.theirs)} there",
        )
    return seen


def make_mismatch_error(place: str, reason: str) -> ModelBroken:
    return ModelBroken(
        f"The tokenizer ({place}) is not that of the model on the upstream server: {reason}. Name "
        "the directory, the GGUF file or the Hugging Face name of that model with --tokenizer."
    )


def _show_ids(ids: list[int]) -> str:
    shown = ", ".join(map(str, ids[:MAX_SHOWN_IDS]))
    return f"[{shown}{', …' if len(ids) > MAX_SHOWN_IDS else ''}]"
