"""Talking to a model in the terminal, over the same pipeline that serves clients.

Ctrl-C stops the answer and not the program; at the prompt it clears the line. Ctrl-D ends.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress

from dragoman.errors import DragomanError
from dragoman.events import Delta
from dragoman.models.registry import ModelRegistry
from dragoman.pipeline import pipeline
from dragoman.types import Chat, Message, Request, Sampling, text_content

PROMPT = ">>> "


async def talk(models: ModelRegistry, system: str | None, sampling: Sampling) -> None:
    """One conversation, until the end of the input."""
    history = [Message(role="system", content=text_content(system))] if system else []
    try:
        name = models.default_name
        say(f"Loading {name} …\n")
        with await models.acquire(name):
            say("Ctrl-C stops an answer, Ctrl-D ends.\n")
            while (text := await ask()) is not None:
                if text.strip():
                    history.append(Message(role="user", content=text_content(text)))
                    await turn(models, history, sampling)
    finally:
        await models.aclose()


async def ask() -> str | None:
    """The next line, or None at the end. Ctrl-C at the prompt asks again."""
    if not sys.stdin.isatty():
        return line_of(await asyncio.to_thread(sys.stdin.readline))
    loop = asyncio.get_running_loop()
    while True:
        typed, stopped = asyncio.Event(), asyncio.Event()
        loop.add_signal_handler(signal.SIGINT, stopped.set)
        loop.add_reader(sys.stdin, typed.set)
        say(PROMPT)
        waits = [asyncio.ensure_future(event.wait()) for event in (typed, stopped)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            loop.remove_reader(sys.stdin)
            loop.remove_signal_handler(signal.SIGINT)
        if typed.is_set():
            return line_of(sys.stdin.readline())
        say("\n")


def line_of(text: str) -> str | None:
    return text.rstrip("\n") if text else None


async def turn(models: ModelRegistry, history: list[Message], sampling: Sampling) -> None:
    """One answer, added to the history as far as it came."""
    request = Request(
        model=models.default_name, prompts=(Chat(messages=tuple(history)),), sampling=sampling
    )
    parts: list[str] = []
    answer = asyncio.ensure_future(stream(models, request, parts))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, answer.cancel)
    try:
        with suppress(asyncio.CancelledError):
            await answer
    except DragomanError as error:
        say(f"[{error.message}]")
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    say("\n")
    history.append(Message(role="assistant", content=text_content("".join(parts))))


async def stream(models: ModelRegistry, request: Request, parts: list[str]) -> None:
    def hear(delta: Delta) -> None:
        if delta.channel == "text":
            parts.append(delta.text)
        say(delta.text)

    plan = await pipeline.prepare(request, models)
    try:
        await pipeline.generate(plan, hear)
    finally:
        plan.close()


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
