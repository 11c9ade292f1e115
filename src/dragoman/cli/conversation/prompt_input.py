"""The line editor: history, several lines, completion of slash commands.

A message that starts with three quotes continues until three quotes end it; Alt-Enter (or Esc, then
Enter) adds a line to any message. Ctrl-C clears the line, Ctrl-D on an empty line ends the input.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

PROMPT, CONTINUATION = ">>> ", "... "
QUOTES = '"""'
INTERRUPT_HINT = "Press Ctrl-D or type /exit to leave."


class SlashCompleter(Completer):
    """Completes slash commands, and the names that `/set` knows."""

    def __init__(self, commands: Iterable[str], parameters: Iterable[str]) -> None:
        self._commands = sorted(commands)
        self._parameters = sorted(parameters)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        head, space, rest = text.partition(" ")
        if not space:
            names, word = self._commands, text
        elif head == "/set" and " " not in rest:
            names, word = self._parameters, rest
        else:
            return
        if text.startswith("/"):
            for name in names:
                if name.startswith(word):
                    yield Completion(name, start_position=-len(word))


class PromptInput:
    """Reads messages from the terminal."""

    def __init__(self, history: Path, completer: Completer) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=open_history(history),
            completer=completer,
            complete_while_typing=False,
            multiline=Condition(self._is_quote_open),
            prompt_continuation=CONTINUATION,
            key_bindings=make_key_bindings(),
        )

    def read(self) -> str | None:
        """Return the next message, or None when the user exits."""
        while True:
            try:
                return unquote(self._session.prompt(PROMPT))
            except KeyboardInterrupt:
                if not self._session.default_buffer.text:
                    print(INTERRUPT_HINT)
            except EOFError:
                return None

    def _is_quote_open(self) -> bool:
        return is_quote_open(self._session.default_buffer.text)


def is_quote_open(text: str) -> bool:
    """Whether a message starts with three quotes that are not closed yet."""
    text = text.strip()
    return text.startswith(QUOTES) and (len(text) < 2 * len(QUOTES) or not text.endswith(QUOTES))


def unquote(text: str) -> str:
    """Return a message without the quotes around it."""
    inner = text.strip()
    if not inner.startswith(QUOTES) or is_quote_open(inner):
        return text
    return inner[len(QUOTES) : -len(QUOTES)].strip("\n")


def make_key_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def add_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline()

    return bindings


def open_history(path: Path) -> History:
    """Return the history of earlier messages; in memory only if its file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        with path.open("ab"):
            return FileHistory(str(path))
    except OSError:
        return InMemoryHistory()
