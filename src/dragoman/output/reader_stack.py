"""Resumes the reader that waits for text, without going through the readers that called it.

`yield from` passes every resumption through all generators between the main loop and the one that
reads, and a call has about ten of them. `run_apart` puts a reader on the stack instead: only that
reader is resumed until it ends, and then its caller goes on.
"""

from __future__ import annotations

from collections.abc import Generator

from dragoman.output.text_buffer import ReadSteps


class ReaderStack:
    """The readers that are resumed for themselves, the innermost last."""

    __slots__ = ("_error", "_readers")

    def __init__(self) -> None:
        self._readers: list[Generator[None, None, object]] = []
        self._error: Exception | None = None  # of the reader that ended last

    def start(self, main: ReadSteps[None]) -> None:
        """Start the main loop, which calls all other readers."""
        self._readers.append(main)
        self.resume()

    def resume(self) -> None:
        """Read until more text is needed, or the main loop ends."""
        readers = self._readers
        while readers:
            reader = readers[-1]
            try:
                next(reader)
            except StopIteration:
                readers.pop()
            except Exception as error:
                readers.pop()
                if not readers:
                    raise
                self._error = error  # the caller raises it
            else:
                if reader is readers[-1]:
                    return

    def finish(self) -> None:
        """Read to the end, when no more text arrives."""
        while self._readers:
            self.resume()

    def run_apart(self, reader: ReadSteps[None]) -> ReadSteps[None]:
        """Run a reader to its end, like `yield from`; the stack resumes it."""
        self._readers.append(reader)
        yield
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # the error refers to this frame: a cycle would keep the parser

    def close(self) -> None:
        """End all readers, which breaks reference cycles."""
        while self._readers:
            self._readers.pop().close()
