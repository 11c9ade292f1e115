"""The options that the server sets for all models and the entry of a model for itself.

They are the options of the engine, local or remote, and those of the preset. All are fields of one
Struct because `Settings` and `ModelOptions` can inherit only one.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from dragoman.engines.remote.options import UpstreamOptions
from dragoman.options import Setting
from dragoman.types import Json

GROUP = "presets"
DEFAULT_MAX_TOOL_CALLS = 16
MaxCalls: TypeAlias = Annotated[int, Meta(ge=1, le=128)]


class PresetValue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value in the form of TabbyAPI's preset files."""

    override: Json = None  # None: not set
    force: bool = False
    additive: bool = False


class SharedOptions(UpstreamOptions, frozen=True, kw_only=True):
    """How to run a model, and values for its requests, which YAML may write as `PresetValue`s."""

    system: Annotated[
        str | PresetValue | None,
        Setting(
            help="system prompt for conversations without one; if forced, it precedes that of "
            "every conversation",
            group=GROUP,
            metavar="TEXT",
        ),
    ] = None
    public_prompt: Annotated[
        tuple[str, ...],
        Setting(
            help="system prompt that all API keys may reuse from the cache",
            group=GROUP,
            metavar="TEXT",
        ),
    ] = ()
    stop: Annotated[
        str | list[str] | PresetValue | None,
        Setting(help="stop string for requests without one", group=GROUP, metavar="TEXT"),
    ] = None
    template_vars: Annotated[
        dict[str, Json],
        Setting(
            help="variable for chat templates, such as enable_thinking=false",
            group=GROUP,
            metavar="NAME=VALUE",
            aliases=("--template-var", "--chat-template-kwargs"),
        ),
    ] = msgspec.field(default_factory=dict)
    sampling: Annotated[
        dict[str, Json],
        Setting(
            help="default of a sampling field, such as temperature=0.7",
            group=GROUP,
            metavar="NAME=VALUE",
        ),
    ] = msgspec.field(default_factory=dict)
    sampling_preset: Annotated[
        str | None,
        Setting(
            help="YAML file of sampling fields, in the form of TabbyAPI's presets",
            group=GROUP,
            metavar="PATH",
            is_path=True,
        ),
    ] = None
    max_tool_calls: Annotated[
        MaxCalls | None,
        Setting(
            help="maximum number of tool calls in an answer that must consist of calls; in "
            "other answers, how often one call may be repeated",
            group=GROUP,
            default=str(DEFAULT_MAX_TOOL_CALLS),
        ),
    ] = None
    lenient_tools: Annotated[
        bool | None,
        Setting(help="accept tool results that answer no call", group=GROUP),
    ] = None
    force: Annotated[
        tuple[str, ...],
        Setting(
            help="system, stop, template variable or sampling field that requests cannot change",
            group=GROUP,
            metavar="NAME",
        ),
    ] = ()


PRESET_FIELDS = tuple(
    name
    for name in SharedOptions.__struct_fields__
    if name not in UpstreamOptions.__struct_fields__
)
