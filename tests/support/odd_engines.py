"""Engines that do one odd thing each, to be made in another process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from dragoman.errors import ModelBroken
from dragoman.types import Job, Step


class Bare:
    """Says one word; has none of the methods an engine may have."""

    async def admit(self, job: Job) -> None:
        pass

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        yield Step(text="word", tokens=1, finish="stop")


class Counting(Bare):
    """Never ends; `tokenize` tells how many jobs are open."""

    def __init__(self) -> None:
        self.open = 0

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        self.open += 1
        try:
            while True:
                yield Step(text="x", tokens=1)
                await asyncio.sleep(0)
        finally:
            self.open -= 1

    async def tokenize(self, text: str, special: bool) -> list[int]:
        return [self.open]


class Raising(Bare):
    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        yield Step(text="wo", tokens=1)
        raise ZeroDivisionError("/a/secret/path")

    async def embed(self, inputs: Sequence[str]) -> list[list[float]]:
        return [[1.0] for _ in inputs]


class Talking(Raising):
    async def embed(self, inputs: Sequence[str]) -> list[list[float]]:
        sys.stderr.write("said on standard error\n")
        sys.stderr.flush()
        return [[1.0] for _ in inputs]


class Stubborn(Bare):
    async def aclose(self) -> None:
        await asyncio.Event().wait()


def create() -> Bare:
    return Bare()


def counting() -> Counting:
    return Counting()


def raising() -> Raising:
    return Raising()


def talking() -> Talking:
    return Talking()


def stubborn() -> Stubborn:
    return Stubborn()


def fragile(flag: str) -> Bare:
    """Cannot be made while the file is there."""
    if Path(flag).exists():
        raise ModelBroken("The flag is up.")
    return Bare()


async def broken() -> Bare:
    raise ModelBroken("The file holds no model.")


def nonsense() -> Bare:
    raise ZeroDivisionError("/a/secret/path")


def dies() -> Bare:
    os.abort()
