"""The type of vLLM's own objects, which has no annotations that can be checked here."""

from __future__ import annotations

from typing import Any, TypeAlias

Native: TypeAlias = Any
