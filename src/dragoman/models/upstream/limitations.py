"""Lists what a model of an upstream server does not support, in sentences for people."""

from __future__ import annotations

from dragoman.models.upstream.discover import Discovery
from dragoman.models.upstream.server_info import ApiKind
from dragoman.types import Capabilities

LIMITATIONS: dict[ApiKind, tuple[str, ...]] = {
    "tokens": (),
    "text": (
        "Schemas, grammars and required tool calls cannot be enforced: strict requests are "
        "rejected, others get a warning.",
        "The spelling of a special token in a message may be read as that token.",
        "Earlier turns are sent as the client sends them, and tokens are counted by the server.",
    ),
    "chat": (
        "The upstream server renders the conversation and parses tool calls and reasoning.",
        "Schemas and tool choices are passed on, but not enforced: strict requests are rejected, "
        "others get a warning.",
        "There are no raw completions, logprobs, token counts, reasoning budgets or LoRA adapters.",
        "Earlier turns are sent as the client sends them.",
    ),
}
FIELDS = {
    "seed": "This server ignores seeds.",
    "cache_scopes": "This server does not keep the cached prompts of API keys apart.",
    "grammars": "This version of the server ignores grammars.",
}


def list_limitations(found: Discovery, capabilities: Capabilities) -> tuple[str, ...]:
    """Return the limitations of a model, for `/v1/models` and for the log."""
    sentences = list(LIMITATIONS[found.api])
    if found.reason:
        sentences.insert(0, f"It is used through its {found.api} API: {found.reason}.")
    if found.api == "text" and not found.template_place:
        sentences.append(
            "No chat template is known, so conversations are joined as plain text; "
            "--chat-template or --tokenizer names one."
        )
    if found.api == "tokens":
        sentences += [FIELDS[name] for name in found.ignored_fields if name in FIELDS]
        if not capabilities.grammars and "grammars" not in found.ignored_fields:
            sentences.append(explain_missing_grammars(found))
    return (*sentences, *found.info.limitations)


def explain_missing_grammars(found: Discovery) -> str:
    """Say why schemas are not enforced, and what the operator can do."""
    start = "Schemas, grammars and required tool calls are not enforced:"
    if found.settings.grammars is False:
        return f"{start} the operator turned grammars off."
    if found.info.kind == "llama-server":
        return (
            f"{start} a llama-server without LLAMA_LLGUIDANCE exits when it gets one; "
            "set --upstream-grammars if this one has it."
        )
    if found.info.kind == "sglang":
        return f"{start} start SGLang with --grammar-backend llguidance."
    if found.info.kind == "vllm":
        return f'{start} start vLLM with --structured-outputs-config \'{{"backend":"guidance"}}\'.'
    return f"{start} the server does not support them."
