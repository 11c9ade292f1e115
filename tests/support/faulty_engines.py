"""Engines with one peculiarity each, created in another process by the name of their function."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from dragoman.errors import ModelBroken
from dragoman.types import Job, Step

PRINTED_LINE = "printed to standard error"


class MinimalEngine:
    """Yields one word, and has none of the optional methods of an engine."""

    async def admit(self, job: Job) -> None:
        pass

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        yield Step(text="word", tokens=1, finish="stop")


class CountingEngine(MinimalEngine):
    """Never ends a job; `tokenize` returns how many jobs are running."""

    def __init__(self) -> None:
        self.running = 0

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        self.running += 1
        try:
            while True:
                yield Step(text="x", tokens=1)
                await asyncio.sleep(0)
        finally:
            self.running -= 1

    async def tokenize(self, text: str, special: bool) -> list[int]:
        return [self.running]


class RaisingEngine(MinimalEngine):
    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        yield Step(text="wo", tokens=1)
        raise ZeroDivisionError("/a/secret/path")

    async def embed(self, inputs: Sequence[str]) -> list[list[float]]:
        return [[1.0] for _ in inputs]


class PrintingEngine(RaisingEngine):
    async def embed(self, inputs: Sequence[str]) -> list[list[float]]:
        sys.stderr.write(f"{PRINTED_LINE}\n")
        sys.stderr.flush()
        return [[1.0] for _ in inputs]


class UnclosableEngine(MinimalEngine):
    async def aclose(self) -> None:
        await asyncio.Event().wait()


def create_minimal() -> MinimalEngine:
    return MinimalEngine()


def create_counting() -> CountingEngine:
    return CountingEngine()


def create_raising() -> RaisingEngine:
    return RaisingEngine()


def create_printing() -> PrintingEngine:
    return PrintingEngine()


def create_unclosable() -> UnclosableEngine:
    return UnclosableEngine()


def create_unless(flag: str) -> MinimalEngine:
    """Fail while the file exists."""
    if Path(flag).exists():
        raise ModelBroken("The flag file exists.")
    return MinimalEngine()


async def raise_model_broken() -> MinimalEngine:
    raise ModelBroken("The file holds no model.")


def raise_exception() -> MinimalEngine:
    raise ZeroDivisionError("/a/secret/path")


def raise_missing_library() -> MinimalEngine:
    raise ImportError("libgomp.so.1: cannot open shared object file: No such file or directory")


def abort_process() -> MinimalEngine:
    os.abort()
