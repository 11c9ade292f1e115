"""Stop strings that a chat template sets for its model: `{% set stop_strings = ["User:"] %}`.

TabbyAPI reads this variable, and templates made for it set it. Its value is taken from a rendering
of a plain conversation.
"""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.errors import TemplateRejected
from dragoman.prompt.template.budget import RenderBudget
from dragoman.prompt.template.capabilities import PROBE_LIMITS, PROBE_TOKENS
from dragoman.prompt.template.template import ChatTemplate

VARIABLE = "stop_strings"
MAX_STRINGS, MAX_LENGTH = 64, 4096
CONVERSATION = [{"role": "user", "content": "Hello"}]


def find_stop_strings(template: ChatTemplate, tokens: Mapping[str, str]) -> tuple[str, ...]:
    """Return the stop strings; `tokens` are the variables for special tokens."""
    if VARIABLE not in template.facts.assigned:
        return ()
    variables = {**PROBE_TOKENS, **tokens, "messages": CONVERSATION, "add_generation_prompt": True}
    exports: dict[str, object] = {}
    try:
        template.render(variables, RenderBudget(PROBE_LIMITS), exports)
    except TemplateRejected:
        return ()
    value = exports.get(VARIABLE)
    texts = value if isinstance(value, list | tuple) else [value]
    strings = (str(text) for text in texts if isinstance(text, str))
    return tuple(text for text in strings if 0 < len(text) <= MAX_LENGTH)[:MAX_STRINGS]
