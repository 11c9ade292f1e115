"""Runs the command line in a terminal of its own, as a user does."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.server_process import DRAGOMAN

CTRL_C, CTRL_D, ALT_ENTER, ENTER = "\x03", "\x04", "\x1b\r", "\r"
UP, LEFT, HOME, TAB = "\x1b[A", "\x1b[D", "\x1b[H", "\t"
CURSOR_REQUEST, CURSOR_REPLY = "\x1b[6n", "\x1b[40;1R"  # it is in the last line
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>78]|\r")
TIMEOUT = 60


class Terminal:
    """A program in a terminal of 100 columns."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.pid, self._handle = pty.fork()
        if self.pid == 0:
            environment = os.environ | {"TERM": "xterm-256color"} | environment
            os.execve(sys.executable, [*DRAGOMAN, *arguments], environment)  # noqa: S606
        size = struct.pack("HHHH", 40, 100, 0, 0)
        fcntl.ioctl(self._handle, termios.TIOCSWINSZ, size)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.raw = ""  # all output so far
        self._position = 0  # in the output without escape codes: up to where `until` has matched

    def type(self, text: str) -> None:
        os.write(self._handle, text.encode())

    def until(self, pattern: str) -> str:
        """Wait for a pattern and return the output since the last call, without escape codes."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            fresh = ESCAPE.sub("", self.raw)[self._position :]
            if match := re.search(pattern, fresh):
                self._position += match.end()
                return fresh[: match.end()]
            assert time.monotonic() < deadline, self.raw
            assert self._read(), self.raw

    def wait(self) -> int:
        """Read the rest of the output and return the exit code."""
        while self._read():
            pass
        os.close(self._handle)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self) -> bool:
        """Read some output, answering requests for the position; False at the end."""
        if not select.select([self._handle], [], [], 1)[0]:
            return True
        try:
            data = os.read(self._handle, 4096)
        except OSError:  # the program has ended
            return False
        text = self._decoder.decode(data)
        self.raw += text
        for _ in range(text.count(CURSOR_REQUEST)):
            self.type(CURSOR_REPLY)
        return bool(data)


@contextmanager
def open_terminal(*arguments: str, **environment: str) -> Iterator[Terminal]:
    """Run a command in a terminal; it must end by itself."""
    terminal = Terminal(*arguments, **environment)
    yield terminal
    assert terminal.wait() == 0, terminal.raw


def ask(terminal: Terminal, text: str, answer: str) -> str:
    """Type a message, wait for its answer and for the next prompt."""
    terminal.type(text + ENTER)
    output = terminal.until(answer)
    terminal.until(r">>>")
    return output
