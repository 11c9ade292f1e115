"""Runs a conversation: one answer, or turns until the user exits.

Everything happens in the main thread, so Ctrl-C is a `KeyboardInterrupt` wherever it comes. During
an answer it closes the stream, which cancels the request, and the conversation goes on.
"""

from __future__ import annotations

import signal
import sys
from contextlib import closing
from pathlib import Path

from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.text import Console
from dragoman.cli.conversation.attachments import make_content
from dragoman.cli.conversation.display import AnswerDisplay, format_stats, print_remarks
from dragoman.cli.conversation.slash_commands import (
    COMMANDS,
    ChatSession,
    ExitChat,
    is_command,
    run_command,
)
from dragoman.errors import DragomanError

LENGTH_REMARK = "[The answer reached its token limit.]"


def run_chat(session: ChatSession, history: Path) -> None:
    """Read messages and commands until the user exits. Errors are shown, and the chat goes on."""
    from dragoman.cli.conversation.parameters import list_names
    from dragoman.cli.conversation.prompt_input import PromptInput, SlashCompleter

    # A shell that starts a program in the background makes it ignore Ctrl-C; a chat needs it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    prompt = PromptInput(history, SlashCompleter(COMMANDS, list_names()))
    while (text := prompt.read()) is not None:
        try:
            run_line(session, text)
        except ExitChat:
            return
        except KeyboardInterrupt:  # ends the answer or the command, not the program
            continue
        except (CommandFailed, DragomanError) as error:
            Console(sys.stderr).print(str(error))


def run_line(session: ChatSession, text: str) -> None:
    if is_command(text):
        run_command(session, text)
    elif text.strip():
        answer_message(session, text)


def answer_message(session: ChatSession, text: str) -> None:
    """Send a message and write its answer as it arrives."""
    conversation, options = session.conversation, session.conversation.options
    content = make_content(text, conversation.model, session.card.modalities)
    with conversation.ask(content) as (stream, answer):
        print_remarks(f"[{warning}]" for warning in stream.warnings)
        display = AnswerDisplay(Console(), options.shows_reasoning)
        try:
            with closing(answer.read(stream)) as pieces:
                for channel, piece in pieces:
                    display.write(channel, piece)
        finally:
            display.finish()
    session.record(answer.stats)
    if answer.finish == "length":
        print_remarks([LENGTH_REMARK])
    if options.is_verbose:
        print_remarks([format_stats(answer.stats)])
