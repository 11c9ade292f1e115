"""Prompts to fill in text that a template in Go's language writes, with places for both texts.

The template is that of the request, else the model's own. A model whose template has no place for
the text after the gap gets both texts between its own tokens (`prompt.infill`).
"""

from __future__ import annotations

from dragoman.errors import BadRequest, Unsupported
from dragoman.models.model import Model
from dragoman.pipeline.rendering.request_template import use_template
from dragoman.prompt.go_template import SUFFIX, writes_suffix
from dragoman.prompt.renderer import PromptRenderer
from dragoman.prompt.tokens.limit import PromptLimit
from dragoman.types import Chat, Infill, Message, Prompt, make_text_content


async def find_infill_renderer(infill: Infill, model: Model) -> PromptRenderer | None:
    """Return a renderer for such prompts; None if they are made of the model's tokens."""
    if infill.template is None:
        own = model.renderer
        is_usable = writes_suffix(own.template_source) and not infill.may_shorten
        return own if is_usable else None
    renderer = (await use_template(infill.template, model)).renderer
    if not writes_suffix(renderer.template_source):
        raise BadRequest(
            f"`{infill.param}` has no place in `template`: add `{{{{ .Suffix }}}}` to it.",
            param=infill.param,
        )
    return renderer


async def render_infill(
    prompt: Prompt, infill: Infill, renderer: PromptRenderer, limit: PromptLimit
) -> tuple[list[int] | str, tuple[str, ...]]:
    """Return the prompt, and warnings; texts of special tokens in it stay text."""
    if not isinstance(prompt.content, str):
        raise Unsupported("`prompt` must be a text for this model's template.", param="prompt")
    message = Message(role="user", content=make_text_content(prompt.content))
    chat = Chat(messages=(message,), template_kwargs={SUFFIX: infill.suffix})
    rendered = await renderer.render(chat, limit=limit)
    return rendered.text if rendered.ids is None else rendered.ids, ()
