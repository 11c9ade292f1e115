"""Chat templates that requests bring, in place of the model's own.

It is converted and compiled in a thread. Answers to such a prompt are not replayed: the turns of
another template would have other tokens around them.
"""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.errors import DragomanError, InvalidValue
from dragoman.models.model import Model
from dragoman.prompt.go_template import convert_go_template
from dragoman.prompt.reasoning_options import ReasoningOptions
from dragoman.prompt.renderer import PromptRenderer
from dragoman.prompt.template.template import compile_template
from dragoman.types.worker_threads import run_in_worker


async def use_template(source: str, model: Model) -> Model:
    """Return the model with the template of a request, which is in Go's language."""
    renderer = await run_in_worker(_make_renderer, source, model.renderer)
    return replace(model, renderer=renderer, public_prompts=())


def _make_renderer(source: str, own: PromptRenderer) -> PromptRenderer:
    template = convert_go_template(source)
    try:
        reasoning, variables = own.reasoning, compile_template(template).facts.variables
        if reasoning.switch is not None and reasoning.switch[0] not in variables:
            reasoning = ReasoningOptions(can_reason=reasoning.can_reason)
        renderer = PromptRenderer(template, own.tokenizer, reasoning=reasoning)
    except DragomanError as error:
        raise InvalidValue(f"`template`: {error.message}", param="template") from None
    renderer.token_cache = own.token_cache
    renderer.special_tokens = own.special_tokens
    renderer.reads_media_as_text = own.reads_media_as_text
    return renderer
