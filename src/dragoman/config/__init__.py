"""The settings of a server, and where each value comes from.

`settings` declares every setting once; `sources` finds its value in the flags, the environment,
dragoman.yaml (`file`) or the default. This package is the only reader of the environment and of
dragoman.yaml.
"""

from dragoman.config.file import locate_key, make_locator, name_key
from dragoman.config.library_defaults import set_library_defaults
from dragoman.config.live import update_live_settings
from dragoman.config.paths import get_cache_dir, get_config_dir, get_state_dir
from dragoman.config.service_manager import (
    get_notify_socket,
    make_handover_environment,
    take_handover,
    take_listen_fds,
)
from dragoman.config.settings import GROUPS, LOOPBACK, Settings
from dragoman.config.sources import (
    PREFIX,
    Configuration,
    Origin,
    SettingsError,
    list_settings,
    load,
    load_configuration,
    log_warnings,
    name_flag,
    name_variable,
)
from dragoman.config.terminal import uses_color

__all__ = [
    "GROUPS",
    "LOOPBACK",
    "PREFIX",
    "Configuration",
    "Origin",
    "Settings",
    "SettingsError",
    "get_cache_dir",
    "get_config_dir",
    "get_notify_socket",
    "get_state_dir",
    "list_settings",
    "load",
    "load_configuration",
    "locate_key",
    "log_warnings",
    "make_handover_environment",
    "make_locator",
    "name_flag",
    "name_key",
    "name_variable",
    "set_library_defaults",
    "take_handover",
    "take_listen_fds",
    "update_live_settings",
    "uses_color",
]
