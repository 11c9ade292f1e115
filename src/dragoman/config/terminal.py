"""What the environment says about the user's terminal."""

from __future__ import annotations

import os
from collections.abc import Mapping


def uses_color(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether colors may be used; `NO_COLOR` turns them off (https://no-color.org)."""
    return not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
