"""Settings of libraries that can only be made through the environment."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

# `tokenizers` hands even one word to other threads, which takes longer than to encode it
DEFAULTS = {"TOKENIZERS_PARALLELISM": "false"}


def set_library_defaults(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what the operator has not set."""
    for name, value in DEFAULTS.items():
        environment.setdefault(name, value)
