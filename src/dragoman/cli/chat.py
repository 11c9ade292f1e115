"""`dragoman chat`: chat with a model in the terminal, over the same pipeline that serves clients.

Ctrl-C stops the answer, not the program; at the prompt it clears the line. Ctrl-D exits.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from dragoman.cli.flags import COMMON, ENGINE, add_flags
from dragoman.cli.pull import choose_model
from dragoman.config import Settings
from dragoman.errors import DragomanError
from dragoman.events import Delta
from dragoman.types import Chat, Message, Request, Sampling, text_content

if TYPE_CHECKING:
    from dragoman.pipeline.services import Services

PROMPT = ">>> "


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "chat", help="chat with a model in the terminal", usage="dragoman chat [FLAGS] [MODEL]"
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="name or file of a model (default: smollm2-135m)"
    )
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument(
        "--temperature",
        type=float,
        metavar="NUMBER",
        help="sampling temperature (0 = greedy; default: the model's own)",
    )
    add_flags(parser, (*COMMON, *ENGINE))
    return parser


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    from dragoman.runtime import build_models, build_services

    model = choose_model(arguments.model, settings)
    logging.getLogger("dragoman").setLevel(logging.WARNING)
    services = build_services(build_models(settings, model), settings)
    sampling = Sampling(temperature=arguments.temperature)
    asyncio.run(run_conversation(services, arguments.system, sampling))


async def run_conversation(services: Services, system: str | None, sampling: Sampling) -> None:
    """Run one conversation, until the input ends."""
    history = [Message(role="system", content=text_content(system))] if system else []
    name = services.models.default_name
    try:
        write(f"Loading {name} …\n")
        with await services.models.acquire(name):
            write("Ctrl-C stops an answer, Ctrl-D exits.\n")
            while (text := await read_line()) is not None:
                if text.strip():
                    history.append(Message(role="user", content=text_content(text)))
                    chat = Chat(messages=tuple(history))
                    request = Request(model=name, prompts=(chat,), sampling=sampling)
                    answer = await run_turn(services, request)
                    history.append(Message(role="assistant", content=text_content(answer)))
    finally:
        await services.aclose()


async def read_line() -> str | None:
    """Return the next line, or None at the end. Ctrl-C at the prompt starts a new line."""
    if not sys.stdin.isatty():
        return strip_newline(await asyncio.to_thread(sys.stdin.readline))
    loop = asyncio.get_running_loop()
    while True:
        typed, interrupted = asyncio.Event(), asyncio.Event()
        loop.add_signal_handler(signal.SIGINT, interrupted.set)
        loop.add_reader(sys.stdin, typed.set)
        write(PROMPT)
        waits = [asyncio.ensure_future(event.wait()) for event in (typed, interrupted)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            loop.remove_reader(sys.stdin)
            loop.remove_signal_handler(signal.SIGINT)
        if typed.is_set():
            return strip_newline(sys.stdin.readline())
        write("\n")


def strip_newline(line: str) -> str | None:
    """Return the line without its newline; an empty string is the end of the input."""
    return line.rstrip("\n") if line else None


async def run_turn(services: Services, request: Request) -> str:
    """Write an answer to the terminal; return its text, or the part before Ctrl-C."""
    parts: list[str] = []
    answer = asyncio.ensure_future(stream_answer(services, request, parts))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, answer.cancel)
    try:
        with suppress(asyncio.CancelledError):
            await answer
    except DragomanError as error:
        write(f"[{error.message}]")
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    write("\n")
    return "".join(parts)


async def stream_answer(services: Services, request: Request, parts: list[str]) -> None:
    from dragoman.pipeline import pipeline

    def deliver(delta: Delta) -> None:
        if delta.channel == "text":
            parts.append(delta.text)
        write(delta.text)

    plan = await pipeline.prepare(request, services)
    try:
        await pipeline.generate(plan, deliver)
    finally:
        plan.close()


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
