"""Any engine, in a child process."""

from __future__ import annotations

from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.engines.subprocess.restart_schedule import Timing

__all__ = ["SubprocessEngine", "Timing"]
