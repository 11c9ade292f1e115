'''Reads Ollama's Modelfile, the text form of a recipe.

    FROM smollm2-135m
    SYSTEM """You answer in rhymes."""
    PARAMETER temperature 0.2
    MESSAGE user Hello

A line has a keyword, in any case, and a value; a value of several lines is between three quotes.
Lines that begin with `#` are comments. `FROM` and `ADAPTER` may name files, which only the command
line reads: clients upload files and name their digests.
'''

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from msgspec import Struct

from dragoman.errors import BadRequest
from dragoman.options.values import suggest
from dragoman.presets import ExampleMessage
from dragoman.types import Json

QUOTES = '"""'
ROLES = ("system", "user", "assistant")
MAX_LENGTH = 1 << 20  # characters
LISTED = ("stop",)  # parameters that may be there several times
_LINE = re.compile(r"(?P<keyword>[A-Za-z]+)[ \t]+(?P<value>\S.*)")
KEYWORDS = ("FROM", "ADAPTER", "TEMPLATE", "SYSTEM", "LICENSE", "PARAMETER", "MESSAGE", "REQUIRES")
EXPECTED = f"expected one of {', '.join(KEYWORDS)} and a value."


class Modelfile(Struct, kw_only=True):
    """The content of a Modelfile."""

    source: str = ""  # a model or a file
    adapters: list[str] = []  # files
    template: str | None = None
    system: str | None = None
    license: list[str] = []
    parameters: dict[str, Json] = {}
    messages: list[ExampleMessage] = []


def parse_modelfile(text: str) -> Modelfile:
    """Parse a Modelfile, or raise an error that names the line."""
    if len(text) > MAX_LENGTH:
        raise BadRequest(f"The Modelfile is longer than {MAX_LENGTH:,} characters.")
    parsed = Modelfile()
    for number, keyword, value in _split(text):
        try:
            _add(parsed, keyword, value)
        except ValueError as error:
            raise BadRequest(f"Modelfile, line {number}: {error}.") from None
    if not parsed.source:
        raise BadRequest("The Modelfile has no FROM: name the model or file to start from.")
    return parsed


def _split(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line number, keyword and value of each instruction."""
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        keyword = match["keyword"].upper() if match else ""
        if match is None or keyword not in KEYWORDS:
            raise BadRequest(f"Modelfile, line {number}: {_explain_line(line)}")
        head, quotes, value = match["value"].partition(QUOTES)
        if not quotes:
            yield number, keyword, _unquote(head.strip())
            continue
        while not value.rstrip().endswith(QUOTES):
            following = next(lines, None)
            if following is None:
                raise BadRequest(f"Modelfile, line {number}: the closing {QUOTES} is missing.")
            value += "\n" + following[1]
        yield number, keyword, head + value.rstrip().removesuffix(QUOTES)


def _explain_line(line: str) -> str:
    """Say what is wrong with a line that is not an instruction."""
    keyword = line.split()[0]
    if keyword.upper() in KEYWORDS:
        return f"{keyword.upper()} needs a value."
    hint = suggest(keyword, KEYWORDS).replace("`", "")
    return f"there is no instruction {keyword}.{hint}" if hint else EXPECTED


def _add(parsed: Modelfile, keyword: str, value: str) -> None:
    """Add an instruction, or raise `ValueError` with the problem."""
    match keyword:
        case "FROM":
            parsed.source = value
        case "ADAPTER":
            parsed.adapters.append(value)
        case "TEMPLATE":
            parsed.template = value
        case "SYSTEM":
            parsed.system = value
        case "LICENSE":
            parsed.license.append(value)
        case "PARAMETER":
            name, _, rest = value.partition(" ")
            add_parameter(parsed.parameters, name, rest.strip())
        case "MESSAGE":
            role, _, content = value.partition(" ")
            if role.lower() not in ROLES:
                raise ValueError(f"the role of a message is one of {', '.join(ROLES)}")
            parsed.messages.append(ExampleMessage(role.lower(), _unquote(content.strip())))  # type: ignore[arg-type]


def add_parameter(parameters: dict[str, Json], name: str, text: str) -> None:
    """Add a parameter, whose value is read like JSON, or else is text."""
    name = name.lower()
    if not name or not text:
        raise ValueError("a parameter has a name and a value")
    try:
        value: Json = json.loads(text)
    except ValueError:
        value = text
    if name in LISTED:
        values = value if isinstance(value, list) else [str(value)]
        value = [*parameters.get(name, []), *values]
    parameters[name] = value


def _unquote(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] == '"'
    return text[1:-1] if is_quoted else text
