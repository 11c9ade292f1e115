"""The settings of a server, and where each value comes from.

`settings` declares every setting once; `sources` finds its value in the flags, the environment or
the default. This package is the only reader of the environment.
"""

from dragoman.config.paths import cache_dir, config_dir, state_dir
from dragoman.config.settings import GROUPS, LOOPBACK, Settings
from dragoman.config.sources import (
    PREFIX,
    SettingsError,
    list_settings,
    load,
    name_flag,
    name_variable,
)
from dragoman.config.terminal import uses_color

__all__ = [
    "GROUPS",
    "LOOPBACK",
    "PREFIX",
    "Settings",
    "SettingsError",
    "cache_dir",
    "config_dir",
    "list_settings",
    "load",
    "name_flag",
    "name_variable",
    "state_dir",
    "uses_color",
]
