"""Sets reasoning effort and budget in the variables that a template reads.

`reasoning_effort: none` turns reasoning off if the template has a switch for it. Any other effort
turns it on, and is also passed to a template that reads it. Variables that a client sets in
`chat_template_kwargs` stay as they are. A token budget is passed to a template that reads one; for
all other templates the pipeline enforces it (`dragoman.pipeline.reasoning_budget`).
"""

from __future__ import annotations

from msgspec import Struct

from dragoman.errors import BadRequest, Unsupported
from dragoman.prompt.template.template import TemplateFacts
from dragoman.types import Chat, Json

EFFORT = "reasoning_effort"
EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
SWITCH_NAMES = ("enable_thinking", "thinking")  # names that clients use, whatever the template's


class ReasoningOptions(Struct, frozen=True):
    """The variables by which a template controls reasoning."""

    switch: tuple[str, Json, Json] | None = None  # a variable, and its values for on and off
    budget: str | None = None  # the variable for the maximum number of tokens
    effort: str = EFFORT  # the variable for the effort
    can_reason: bool = False  # whether the model is known to reason at all


def make_reasoning_variables(
    chat: Chat, facts: TemplateFacts, options: ReasoningOptions
) -> dict[str, Json]:
    """Return the variables to set for this chat, besides those that the client sets."""
    variables: dict[str, Json] = {}
    knows_effort = options.effort in facts.variables
    if chat.reasoning_effort is not None and (knows_effort or not is_already_off(chat, options)):
        variables |= _make_effort_variables(chat, knows_effort, facts, options)
    if chat.thinking_budget is not None and options.budget is not None:
        variables[options.budget] = chat.thinking_budget
    return {name: value for name, value in variables.items() if name not in chat.template_kwargs}


def rename_switch(
    name: str, value: Json, facts: TemplateFacts, options: ReasoningOptions
) -> dict[str, Json] | None:
    """Return a well-known switch as the variable of this template; None if it is another one."""
    switch = options.switch
    if name in facts.variables or name not in SWITCH_NAMES or switch is None:
        return None
    return {switch[0]: switch[1] if value else switch[2]} if isinstance(value, bool) else None


def is_already_off(chat: Chat, options: ReasoningOptions) -> bool:
    """Whether the client turns off reasoning that the model does not have anyway."""
    turned_off = chat.reasoning_effort == "none"
    return turned_off and not options.can_reason and options.switch is None


def _make_effort_variables(
    chat: Chat, knows_effort: bool, facts: TemplateFacts, options: ReasoningOptions
) -> dict[str, Json]:
    effort, name, switch = chat.reasoning_effort, options.effort, options.switch
    param = chat.get_client_field_name(EFFORT)
    if switch is not None and switch[0] == name and switch[2] not in facts.words:
        switch = None  # a template that writes any effort into the prompt turns nothing off
    if effort == "none":
        if switch is None:
            raise Unsupported("This model's reasoning cannot be turned off.", param=param)
        return {switch[0]: switch[2]}
    if not knows_effort and switch is None:
        raise make_effort_error(chat)
    if not knows_effort and effort not in EFFORTS:
        choices = ", ".join(("none", *EFFORTS))
        raise BadRequest(f"`{param}` must be one of {choices}.", param=param)
    variables = {} if switch is None else {switch[0]: switch[1]}
    return variables | ({name: effort} if knows_effort else {})


def make_effort_error(chat: Chat) -> Unsupported:
    param = chat.get_client_field_name(EFFORT)
    return Unsupported("This model has no reasoning effort to set.", param=param)
