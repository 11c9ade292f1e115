"""Dragoman with the scripted engine. Run as `python -m bench.scripted_server PORT PACE`."""

from __future__ import annotations

import sys

import dragoman
from bench.measure import TOKEN
from dragoman.testing import Reply
from dragoman.testing.delivering_engine import DeliveringEngine

if __name__ == "__main__":
    reply = Reply(TOKEN * 10_000, chunks=len(TOKEN))
    engine = DeliveringEngine(reply, pace=float(sys.argv[2]))
    dragoman.serve(engine, port=int(sys.argv[1]), name="bench", queue=10_000, log_level="warning")
