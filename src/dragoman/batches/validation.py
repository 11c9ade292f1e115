"""Checks all lines of a batch before the first is answered.

A file that has an invalid line is not run at all: its batch fails, with the problems of the first
invalid lines. What the request of a line asks for is checked when it is answered; an error there
is the answer to that line alone.
"""

from __future__ import annotations

from dragoman.batches.lines import FileLine, LineSplitter
from dragoman.protocols import batches
from dragoman.protocols.batches import BatchLine, LineProblem

MAX_LINES = 50_000
MAX_PROBLEMS = 100  # after which the rest of a file is not checked


class BatchValidator:
    """Checks the lines of one file, chunk by chunk. Blocks; call it in a worker thread."""

    def __init__(self, endpoint: str, max_line: int) -> None:
        self._endpoint = endpoint
        self._splitter = LineSplitter(max_line)
        self._max_line = max_line
        self._lines_by_id: dict[str, int] = {}
        self._models: set[str | None] = set()
        self.problems: list[tuple[int | None, LineProblem]] = []
        self.total = 0

    @property
    def model(self) -> str | None:
        """The model of all lines, if it is the same."""
        return next(iter(self._models)) if len(self._models) == 1 else None

    def feed(self, chunk: bytes) -> bool:
        """Check the lines that end in a chunk; False if the rest need not be checked."""
        return self._check_all(self._splitter.feed(chunk))

    def finish(self) -> None:
        """Check the last line, and the file as a whole."""
        self._check_all(self._splitter.finish())
        if not self.total and not self.problems:
            self.problems.append((None, LineProblem("empty_file", "The file has no requests.")))

    def _check_all(self, lines: list[FileLine]) -> bool:
        for line in lines:
            problem = self._check(line)
            if problem is not None:
                self.problems.append((line.number, problem))
            if len(self.problems) >= MAX_PROBLEMS:
                return False
            if self.total > MAX_LINES:
                problem = LineProblem(
                    "too_many_requests", f"The file has more than {MAX_LINES:,} requests."
                )
                self.problems.append((None, problem))
                return False
        return True

    def _check(self, line: FileLine) -> LineProblem | None:
        self.total += 1
        if line.data is None:
            message = f"This line is longer than {self._max_line:,} bytes."
            return LineProblem("line_too_long", message)
        decoded = batches.decode_line(line.data, self._endpoint)
        if isinstance(decoded, LineProblem):
            return decoded
        first = self._lines_by_id.setdefault(decoded.custom_id, line.number)
        if first != line.number:
            message = f"Line {first} has the same `custom_id`."
            return LineProblem("duplicate_custom_id", message, "custom_id")
        self._models.add(decoded.model)
        return None


def decode_lines(lines: list[FileLine], endpoint: str) -> list[tuple[int, BatchLine]]:
    """Decode lines that were valid, with their numbers."""
    decoded = []
    for line in lines:
        content = None if line.data is None else batches.decode_line(line.data, endpoint)
        if isinstance(content, BatchLine):
            decoded.append((line.number, content))
    return decoded
