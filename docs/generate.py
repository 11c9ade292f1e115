"""Writes the pages of docs/ that come from the code. A test checks that they are current."""

from __future__ import annotations

from pathlib import Path

import yaml

from dragoman import config
from dragoman.errors import ERROR_CLASSES, DragomanError
from dragoman.formats import reasoning_formats, tool_formats
from dragoman.models.mapping import ModelOptions
from dragoman.options import OptionField, list_fields

HERE = Path(__file__).parent
PARTS = HERE / "parts"

ERRORS = """# Errors

Every error has the same body, whatever its status, in the form of the client's wire API:

```json
{"error": {"message": "...", "type": "...", "param": "messages[0].role", "code": "..."}}
```

`param` names the field that caused the error, or is null. A stream that fails after its first event
sends the same object as a `data:` event and then `data: [DONE]`. 429 and 503 have `Retry-After`.
Errors that a retry cannot fix have `x-should-retry: false`. This page is generated from
`errors.py`.

A field that cannot be honoured is an error if the request is strict about it. Otherwise the
response, whole or streamed, has an `x-dragoman-warning` header with one sentence for each such
field.

| status | type | code | name |
|--:|---|---|---|
"""


def make_errors_page() -> str:
    rows = [
        f"| {kind.status} | `{kind.type}` | `{kind.code}` | {name} |"
        for name, kind in sorted(ERROR_CLASSES.items(), key=lambda item: (item[1].status, item[0]))
        if kind is not DragomanError and kind.code is not None
    ]
    return ERRORS + "\n".join(rows) + "\n"


def make_formats_page() -> str:
    """Return the prose of `parts/formats.md` with the tables of all formats."""
    tools = [
        (entry.name, entry.models, entry.example, entry.aliases)
        for entry in tool_formats().values()
    ]
    reasoning = [
        (entry.name, entry.models, entry.example, tuple(entry.aliases))
        for entry in reasoning_formats().values()
    ]
    results = yaml.safe_load((PARTS / "misses.yaml").read_text(encoding="utf-8"))
    misses = "\n".join(f"- `{case}`: {reason}" for case, reason in results["misses"])
    prose = (PARTS / "formats.md").read_text(encoding="utf-8")
    return prose.format(
        tools=make_table(tools),
        reasoning=make_table(reasoning),
        cases=results["score"],
        misses=misses,
    )


def make_table(rows: list[tuple[str, str, str, tuple[str, ...]]]) -> str:
    lines = ["| name | models | example | also known as |", "|---|---|---|---|"]
    for name, models, example, aliases in rows:
        text = example.replace("|", "\\|").replace("\n", "⏎")
        fence = "``" if "`" in text else "`"
        other_names = ", ".join(f"`{alias}`" for alias in aliases)
        lines.append(f"| `{name}` | {models} | {fence} {text} {fence} | {other_names} |")
    return "\n".join(lines)


def make_configuration_page() -> str:
    """Return the prose of `parts/configuration.md` with a table for each group of settings."""
    tables = []
    for group in config.GROUPS:
        fields = [
            field for field in config.list_settings().values() if field.setting.group == group
        ]
        rows = [make_setting_row(field) for field in fields if not field.setting.file_only]
        title = group[0].upper() + group[1:]
        tables.append("\n".join([f"### {title}\n", SETTING_HEADINGS, *rows]))
    options = [
        f"| `{field.name}` | {field.setting.help} |" for field in list_fields(ModelOptions).values()
    ]
    prose = (PARTS / "configuration.md").read_text(encoding="utf-8")
    prose = prose.replace("{options}", "\n".join(["| option | meaning |", "|---|---|", *options]))
    return prose.replace("{settings}", "\n\n".join(tables))


SETTING_HEADINGS = (
    "| flag | environment | dragoman.yaml | default | meaning |\n|---|---|---|---|---|"
)


def make_setting_row(field: OptionField) -> str:
    flags = (config.name_flag(field), *field.setting.aliases)
    value = "" if field.kind is bool else f" {field.metavar}"
    cells = [", ".join(f"`{flag}{value if flag == flags[0] else ''}`" for flag in flags)]
    cells += [f"`{config.name_variable(field)}`"]
    cells += ["`{}.{}`".format(*config.name_key(field)) if field.setting.in_file else ""]
    text = field.setting.help
    if field.setting.choices:
        text += ": " + ", ".join(field.setting.choices)
    cells += [field.default_text, text]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


PAGES = {
    "errors.md": make_errors_page,
    "formats.md": make_formats_page,
    "configuration.md": make_configuration_page,
}

if __name__ == "__main__":
    for name, make_page in PAGES.items():
        (HERE / name).write_text(make_page(), encoding="utf-8")
