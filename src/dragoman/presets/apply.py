"""Combines a request with the preset of its model."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.presets.preset import Preset
from dragoman.presets.sampling import PresetSampling, add_values, combine
from dragoman.types import Adapter, Chat, Message, Request, make_text_content

SYSTEM_ROLES = ("system", "developer")


def apply_sampling(request: Request, preset: Preset) -> Request:
    """Return the request with the preset's sampling fields and stop strings."""
    if not preset.changes_sampling:
        sampling = request.sampling.with_defaults(request.api_defaults)
        return request if sampling is request.sampling else replace(request, sampling=sampling)
    sent = PresetSampling(
        sampling=request.sampling,
        text_biases=request.text_biases,
        banned_strings=request.banned_strings or None,
    )
    combined = combine(sent, preset.sampling, preset.additive)
    forced = preset.forced_sampling
    combined = combine(forced, combined, frozenset())
    stop, ignored = _combine_stops(request, preset)
    ignored += [name for name in forced.names if _is_overruled(name, sent, forced)]
    names = request.client_field_names
    return replace(
        request,
        sampling=combined.sampling.with_defaults(request.api_defaults),
        text_biases=combined.text_biases,
        banned_strings=combined.banned_strings or (),
        stop=stop,
        lora=tuple(map(Adapter, preset.lora)) or None if request.lora is None else request.lora,
        warnings=(*request.warnings, *(make_warning(names.get(name, name)) for name in ignored)),
    )


def _combine_stops(request: Request, preset: Preset) -> tuple[tuple[str, ...], list[str]]:
    """Return the stop strings, and the name of the field if the client's have no effect."""
    stop, rule = preset.stop, preset.stop_rule
    if stop is None or (rule == "default" and request.stop):
        return request.stop, []
    if rule == "add":
        return add_values(stop, request.stop), []
    return stop, ["stop"] if request.stop and request.stop != stop else []


def _is_overruled(name: str, sent: PresetSampling, forced: PresetSampling) -> bool:
    """Whether the client sent another value than the one that is forced."""
    if name == "banned_strings":
        return sent.banned_strings not in (None, forced.banned_strings)
    if name == "logit_bias" and sent.text_biases != forced.text_biases:
        return sent.sampling.logit_bias is not None
    return getattr(sent.sampling, name) not in (None, getattr(forced.sampling, name))


def apply_to_chat(chat: Chat, preset: Preset) -> tuple[Chat, list[str]]:
    """Return the chat with the preset's system prompt and template variables, and warnings."""
    ignored = [
        chat.get_client_variable_name(name)
        for name, value in preset.forced_variables.items()
        if chat.template_kwargs.get(name, value) != value
    ]
    variables = preset.variables | chat.template_kwargs | preset.forced_variables
    messages = chat.messages
    if preset.system and (preset.system_rule != "default" or not _has_system_prompt(chat)):
        system = Message(role="system", content=make_text_content(preset.system))
        messages = (system, *messages)
    messages = _insert_examples(messages, preset)
    chat = replace(chat, messages=messages, template_kwargs=variables)
    return chat, [make_warning(name) for name in ignored]


def _insert_examples(messages: tuple[Message, ...], preset: Preset) -> tuple[Message, ...]:
    """Put the messages of the preset after the system prompt, where templates expect it."""
    if not preset.messages:
        return messages
    roles = [message.role for message in messages]
    start = next((i for i, role in enumerate(roles) if role not in SYSTEM_ROLES), len(roles))
    examples = (
        Message(role=example.role, content=make_text_content(example.content))
        for example in preset.messages
    )
    return (*messages[:start], *examples, *messages[start:])


def make_warning(name: str) -> str:
    return f"`{name}` has no effect: the operator of this server has set it."


def _has_system_prompt(chat: Chat) -> bool:
    return any(message.role in SYSTEM_ROLES for message in chat.messages)
