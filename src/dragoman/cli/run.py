"""`dragoman run`: chat with a model in the terminal, or answer one prompt.

A running server is used if there is one; otherwise the model is loaded here, in the same app that
`dragoman serve` serves. With a prompt or with piped input, one answer is written and the command
ends. In a terminal, Ctrl-C stops the answer, not the program; Ctrl-D exits.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
from contextlib import closing

from dragoman.cli.client.arguments import (
    add_client_flags,
    add_model_argument,
    needs_local_model,
    reduce_logging,
)
from dragoman.cli.client.connect import notify, open_client
from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.flags import add_usage
from dragoman.cli.console.text import print_text
from dragoman.cli.conversation.chat_loop import answer_message, run_chat
from dragoman.cli.conversation.conversation import ChatOptions, Conversation
from dragoman.cli.conversation.parameters import set_option
from dragoman.cli.conversation.slash_commands import ChatSession
from dragoman.config import Settings, get_state_dir
from dragoman.errors import StartupError

PROMPT_PLACE = "Write the prompt after the name of the model."
WELCOME = "/help lists the commands. Ctrl-C stops an answer, Ctrl-D exits."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_usage(
        parser,
        "[FLAGS] [MODEL] [PROMPT]",
        examples=(
            "dragoman run",
            'dragoman run smollm2-135m "Why is the sky blue?"',
            "dragoman run smollm2-135m --set max_tokens=100 < question.txt",
            "dragoman run ./model.gguf --context 16k --system 'Answer in French.'",
        ),
    )
    add_model_argument(parser)
    parser.add_argument(
        "words", nargs="*", metavar="PROMPT", help="answer this and exit; piped input is added"
    )
    add_chat_flags(parser)
    add_client_flags(parser)


def add_chat_flags(parser: argparse.ArgumentParser) -> None:
    section = parser.add_argument_group("conversation")
    section.add_argument("--system", dest="system_message", metavar="TEXT", help="system message")
    section.add_argument(
        "--temperature", metavar="NUMBER", help="sampling temperature (0 = greedy)"
    )
    section.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other parameter that /set knows, like max_tokens=100; may be repeated",
    )
    section.add_argument(
        "--think",
        metavar="LEVEL",
        help="on, off, low, medium or high: how much the model reasons",
    )
    section.add_argument("--hide-reasoning", action="store_true", help="do not show reasoning")
    section.add_argument("--verbose", action="store_true", help="show statistics of every answer")


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    options = make_options(arguments)
    text = read_prompt(arguments.words)
    is_local = needs_local_model(arguments)
    reduce_logging(arguments)
    try:
        client, model = open_client(arguments.model, settings, is_local=is_local)
    except StartupError as error:
        if arguments.words or " " not in (arguments.model or ""):
            raise
        raise CommandFailed(f"{error} {PROMPT_PLACE}") from None
    with closing(client):
        session = ChatSession(Conversation(client, model, options))
        if text is not None:
            answer_message(session, text)
            return
        if session.card.status != "ready":
            notify(f"{model} is not loaded yet, so the first answer takes longer.")
        print_text(f"Chatting with {model} {client.place}.\n{WELCOME}")
        run_chat(session, get_state_dir() / "history")


def make_options(arguments: argparse.Namespace) -> ChatOptions:
    options = ChatOptions(
        system=arguments.system_message,
        is_verbose=arguments.verbose,
        shows_reasoning=not arguments.hide_reasoning,
    )
    if arguments.format == "json":  # which Ollama's users mean otherwise
        raise CommandFailed(
            "--format names the format of tool calls. For answers in JSON, use --set format=json."
        )
    pairs = [*arguments.set]
    for name in ("temperature", "think"):
        value = getattr(arguments, name)
        pairs += [f"{name}={value}"] if value is not None else []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise CommandFailed(f"--set takes NAME=VALUE, not {pair!r}.")
        set_option(options, f"{name.strip()} {value}")
    return options


def read_prompt(words: list[str]) -> str | None:
    """Return the prompt of the arguments and of piped input; None starts a conversation."""
    parts = [" ".join(words)] if words else []
    if is_piped(sys.stdin.fileno()) or (not parts and not is_interactive()):
        parts.append(sys.stdin.buffer.read().decode(errors="replace"))
    if not parts:
        return None
    text = "\n\n".join(part.strip("\n") for part in parts if part.strip())
    if not text:
        raise CommandFailed(f"The prompt is empty. {PROMPT_PLACE}")
    return text.encode(errors="replace").decode()  # arguments may be no UTF-8


def is_piped(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
