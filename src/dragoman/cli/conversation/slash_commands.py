"""The commands of a conversation that begin with a slash."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from dragoman.cli.client.client import ServedModel
from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.table import print_fields
from dragoman.cli.console.text import print_text
from dragoman.cli.conversation import parameters
from dragoman.cli.conversation.answer import AnswerStats
from dragoman.cli.conversation.conversation import Conversation
from dragoman.cli.conversation.saved_chat import read_chat, write_chat
from dragoman.options import suggest

COMMAND = re.compile(r"/([a-z]*|\?)(?:\s+|$)", re.IGNORECASE)
HELP_WIDTH = 66  # characters, beside the names in the first column
EDITING_HELP = '''To write several lines, put """ before and after them, or press Alt-Enter.
Ctrl-C stops an answer, Ctrl-D exits. The arrow keys recall earlier messages.'''


class ExitChat(Exception):
    """The user ends the conversation."""


class ChatSession:
    """A conversation and what was measured in it."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.card: ServedModel = conversation.client.get_model(conversation.model)
        self.last: AnswerStats | None = None
        self.answers = 0
        self.tokens = 0

    def record(self, stats: AnswerStats) -> None:
        self.last = stats
        self.answers += 1
        self.tokens += stats.completion_tokens


class SlashCommand(Struct, frozen=True):
    usage: str
    help: str
    run: Callable[[ChatSession, str], None]


def is_command(text: str) -> bool:
    """Whether a message is a command; a path that begins with a slash is not."""
    return COMMAND.match(text.strip()) is not None


def run_command(session: ChatSession, text: str) -> None:
    """Run the command of a message, or raise `CommandFailed`."""
    match = COMMAND.match(text.strip())
    name = match[1].lower() if match else ""
    command = COMMANDS.get(f"/{ALIASES.get(name, name)}")
    if command is None:
        hint = suggest(f"/{name}", COMMANDS)
        raise CommandFailed(f"There is no command `/{name}`.{hint} /help lists the commands.")
    command.run(session, text.strip()[match.end() if match else 0 :].strip())


def _show_help(session: ChatSession, argument: str) -> None:
    print_fields((command.usage, command.help) for command in COMMANDS.values())
    print_text(f"\n{EDITING_HELP}\n\nParameters of /set:")
    print_fields([*parameters.HELP.items(), ("sampling", _wrap(parameters.list_parameters()))])


def _wrap(names: Iterable[str]) -> str:
    return textwrap.fill(", ".join(names), HELP_WIDTH)


def _set_system(session: ChatSession, argument: str) -> None:
    options = session.conversation.options
    if argument:
        parameters.set_option(options, f"system {argument}")
    print_text(f"system: {options.system or 'not set'}")


def _set(session: ChatSession, argument: str) -> None:
    options = session.conversation.options
    if argument:
        parameters.set_option(options, argument)
    print_fields(parameters.describe_options(options))


def _save(session: ChatSession, argument: str) -> None:
    path = _parse_path("/save", argument)
    write_chat(path, session.conversation.save())
    print_text(f"Saved {_count_messages(session.conversation.messages)} in {path}.")


def _load(session: ChatSession, argument: str) -> None:
    saved = read_chat(_parse_path("/load", argument))
    session.conversation.restore(saved)
    print_text(f"Loaded {_count_messages(saved.messages)}.")
    if saved.model not in (None, session.conversation.model):
        print_text(f"They were written with {saved.model}; the model in use does not change.")


def _count_messages(messages: Sequence[object]) -> str:
    return "1 message" if len(messages) == 1 else f"{len(messages)} messages"


def _parse_path(command: str, argument: str) -> Path:
    if not argument:
        raise CommandFailed(f"{command} needs the name of a file.")
    return Path(os.path.expanduser(parameters.strip_quotes(argument)))


def _clear(session: ChatSession, argument: str) -> None:
    session.conversation.clear()
    print_text("The conversation is empty; the system message and parameters stay.")


def _show_stats(session: ChatSession, argument: str) -> None:
    if session.last is None:
        raise CommandFailed("There is no answer yet.")
    noun = "answer" if session.answers == 1 else "answers"
    totals = f"{session.answers} {noun}, {session.tokens} tokens"
    print_fields([*session.last.describe(), ("this session", totals)])


def _show_model(session: ChatSession, argument: str) -> None:
    card = session.card = session.conversation.client.get_model(session.conversation.model)
    fields = [
        ("model", card.id),
        ("architecture", card.architecture),
        ("parameters", card.parameters),
        ("quantization", card.quantization),
        ("context", None if card.context_length is None else f"{card.context_length} tokens"),
        ("capabilities", ", ".join(card.capabilities)),
        ("reads", ", ".join(card.modalities)),
        ("running", session.conversation.client.place),
    ]
    print_fields((name, value) for name, value in fields if value)


def _change_model(session: ChatSession, argument: str) -> None:
    conversation = session.conversation
    if not argument:
        for card in conversation.client.list_models():
            print_text(f"{'*' if card.id == conversation.model else ' '} {card.id}")
        return
    session.card = conversation.client.get_model(argument)
    conversation.model = session.card.id
    print_text(f"The next answers come from {session.card.id}.")


def _exit(session: ChatSession, argument: str) -> None:
    raise ExitChat


ALIASES = {"?": "help", "bye": "exit", "quit": "exit", "info": "show", "reset": "clear"}
COMMANDS = {
    command.usage.partition(" ")[0]: command
    for command in (
        SlashCommand("/help", "show this list", _show_help),
        SlashCommand("/system [TEXT]", "show or set the system message", _set_system),
        SlashCommand(
            "/set [NAME VALUE]",
            "show or set parameters: temperature 0.3, temperature default",
            _set,
        ),
        SlashCommand("/save FILE", "save the conversation as JSON", _save),
        SlashCommand("/load FILE", "continue a saved conversation", _load),
        SlashCommand("/clear", "forget the conversation", _clear),
        SlashCommand("/stats", "show tokens and times of the last answer", _show_stats),
        SlashCommand("/show", "describe the model", _show_model),
        SlashCommand("/model [NAME]", "list the models, or use another one", _change_model),
        SlashCommand("/exit", "exit", _exit),
    )
}
