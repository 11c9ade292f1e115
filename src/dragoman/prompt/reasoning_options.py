"""How hard a model is asked to think, in the variables that its template reads.

`reasoning_effort: none` turns thinking off where there is a switch for it; any other effort turns
it on, and is told to a template that knows efforts. What a client sets by itself in
`chat_template_kwargs` is left as it is. A budget of tokens goes to a template that reads one; for
all others the pipeline keeps it (`dragoman.thinking`).
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from dragoman.errors import BadRequest, Unsupported
from dragoman.prompt.template.template import TemplateFacts
from dragoman.types import Chat

EFFORT = "reasoning_effort"
EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")


class ReasoningOptions(Struct, frozen=True):
    """What a template has to set its thinking with."""

    switch: tuple[str, Any, Any] | None = None  # a variable, and its values for on and off
    budget: str | None = None  # a variable for the most tokens
    effort: str = EFFORT  # the variable that efforts go to
    can_reason: bool = False  # whether the model thinks at all, as far as is known


def reasoning_variables(
    chat: Chat, facts: TemplateFacts, knobs: ReasoningOptions
) -> dict[str, Any]:
    """What to set for this chat, besides what its client set."""
    made: dict[str, Any] = {}
    known = knobs.effort in facts.variables
    if chat.reasoning_effort is not None and (known or not is_already_off(chat, knobs)):
        made |= _effort(chat, known, facts, knobs)
    if chat.thinking_budget is not None and knobs.budget is not None:
        made[knobs.budget] = chat.thinking_budget
    return {name: value for name, value in made.items() if name not in chat.template_kwargs}


def is_already_off(chat: Chat, knobs: ReasoningOptions) -> bool:
    """Whether a client turns off what is not there."""
    off = chat.reasoning_effort == "none"
    return off and not knobs.can_reason and knobs.switch is None


def _effort(
    chat: Chat, known: bool, facts: TemplateFacts, knobs: ReasoningOptions
) -> dict[str, Any]:
    effort, name, switch = chat.reasoning_effort, knobs.effort, knobs.switch
    param = chat.get_client_field_name(EFFORT)
    if switch is not None and switch[0] == name and switch[2] not in facts.words:
        switch = None  # a template that writes down any word turns nothing off
    if effort == "none":
        if switch is None:
            raise Unsupported("This model's thinking cannot be turned off.", param=param)
        return {switch[0]: switch[2]}
    if not known and switch is None:
        raise effort_error(chat)
    if not known and effort not in EFFORTS:
        choices = ", ".join(("none", *EFFORTS))
        raise BadRequest(f"`{param}` must be one of {choices}.", param=param)
    made = {} if switch is None else {switch[0]: switch[1]}
    return made | ({name: effort} if known else {})


def effort_error(chat: Chat) -> Unsupported:
    return Unsupported(
        "This model has no reasoning effort to set.", param=chat.get_client_field_name(EFFORT)
    )
