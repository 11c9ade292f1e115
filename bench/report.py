"""The options of a run and the tables that it prints."""

from __future__ import annotations

from msgspec import Struct


class BenchOptions(Struct, frozen=True, kw_only=True):
    """How often and how long each part measures."""

    rounds: int = 5
    window: float = 3.0  # seconds of one measurement of running streams
    model: str = ""  # path of the GGUF file
    tokens: int = 96  # length of an answer by the real model


class Table(Struct):
    """One result as Markdown."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = []

    def __str__(self) -> str:
        lines = [f"## {self.title}", ""]
        lines += [f"| {' | '.join(self.columns)} |", f"|{'---|' * len(self.columns)}"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        return "\n".join([*lines, "", *self.notes, ""])


class Tables(Struct):
    """The results of a part that has several tables."""

    tables: list[Table]

    def __str__(self) -> str:
        return "\n".join(map(str, self.tables))
