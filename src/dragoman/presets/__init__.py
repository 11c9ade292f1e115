"""What an operator sets for requests: system prompt, stop strings, template variables, sampling.

`SharedOptions` declares these options once, for the server and for the entry of a model. A
`Preset` is what they come to for one model, and `apply` combines it with a request. Each value is
a default, which a request replaces, unless the operator says otherwise:

    force: true      the value wins; a request that asks for another gets a warning
    additive: true   the value of a request is added to it, where both are lists

The values win in this order: forced by the operator, sent by the client, the operator's default,
recommended by the model's author, ours.
"""

from dragoman.presets.options import PresetValue, SharedOptions
from dragoman.presets.preset import (
    ExampleMessage,
    Preset,
    PresetError,
    expand_preset,
    parse_preset,
)

__all__ = [
    "ExampleMessage",
    "Preset",
    "PresetError",
    "PresetValue",
    "SharedOptions",
    "expand_preset",
    "parse_preset",
]
