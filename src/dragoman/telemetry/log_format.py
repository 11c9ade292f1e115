"""Structured log events, as text or as JSON.

A `LogEvent` is a message with fields. As text it is one line, `message key=value …`; as JSON it is
one object with the fields at its top level. Whatever a client sent (paths, names, ids) is escaped
and cut, so that a line is always one event.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping

from dragoman.types import Json

TEXT_FORMAT = "%(asctime)s %(levelname)s %(message)s"
MAX_TEXT = 200  # characters of one value
_QUOTED = frozenset(' "=\\')


def escape_text(text: str, limit: int = MAX_TEXT) -> str:
    """Return a text without control characters and line breaks, cut to a limit."""
    if len(text) > limit:
        text = text[:limit] + "…"
    if text.isprintable():
        return text
    return "".join(map(_escape_character, text))


def _escape_character(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


class LogEvent:
    """A log message with fields; those that are None or empty are left out.

    `message_fields` are those that the message contains already, so as text they are not repeated.
    """

    def __init__(
        self,
        message: str,
        fields: Mapping[str, Json],
        message_fields: Mapping[str, Json] | None = None,
        limit: int = MAX_TEXT,
    ) -> None:
        self.message = message
        self.message_fields = dict(message_fields or {})
        self.fields = {name: value for name, value in fields.items() if value or value == 0}
        self._limit = limit

    def __str__(self) -> str:
        fields = [f"{name}={self._format(value)}" for name, value in self.fields.items()]
        return " ".join([self.message, *fields])

    def to_json(self) -> dict[str, Json]:
        return {"message": self.message} | self.message_fields | self.fields

    def _format(self, value: Json) -> str:
        if isinstance(value, str):
            text = value
        elif isinstance(value, bool):
            return "true" if value else "false"
        elif isinstance(value, int | float):
            return repr(value)
        elif isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            text = ",".join(value)
        else:
            text = json.dumps(value, ensure_ascii=False)
        escaped = escape_text(text, self._limit)
        if _QUOTED.isdisjoint(escaped):
            return escaped
        return f'"{escaped}"' if '"' not in escaped else json.dumps(escaped, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """One line per event; a traceback follows on lines of its own."""

    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # of `logging`
        record.message = escape_text(record.message, len(record.message))
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One JSON object per event, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        created = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        event: dict[str, Json] = {
            "time": f"{created}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if isinstance(record.msg, LogEvent):
            event |= record.msg.to_json()
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str)


def make_formatter(log_format: str) -> logging.Formatter:
    """Return a formatter for `text` or `json`."""
    return JsonFormatter() if log_format == "json" else TextFormatter()
