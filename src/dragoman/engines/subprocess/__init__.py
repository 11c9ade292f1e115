"""Runs any engine in a child process, and restarts the child when it dies or hangs.

engine            the engine as the server uses it: starts, watches and replaces the child
child             the program of the child: creates the engine and runs its jobs
messages          what the two send each other
connection        everything that waits on one child
interpreter       which Python runs the child
progress          whether the engine makes progress, or hangs
restart_schedule  when a dead child is restarted
suspects          requests that may have crashed the engine
crash_owners      owners whose requests crash it repeatedly
sleep             frees the memory of the device while the engine is idle
"""

from __future__ import annotations

from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.engines.subprocess.restart_schedule import Timing

__all__ = ["SubprocessEngine", "Timing"]
