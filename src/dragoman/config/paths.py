"""The directories of a user, as the XDG variables of the environment place them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def get_cache_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's directory for files that can be downloaded again."""
    base = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dragoman"


def get_state_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's directory for files that must persist."""
    base = environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "dragoman"


def get_config_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's directory for files that they edit."""
    base = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "dragoman"
