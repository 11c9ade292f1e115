"""Writes the pages of docs/ that come from the code. A test checks that they are current."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from dragoman import config
from dragoman.errors import ERROR_CLASSES, DragomanError
from dragoman.formats import get_reasoning_formats, get_tool_formats
from dragoman.models.mapping import ModelOptions
from dragoman.options import OptionField, list_fields
from dragoman.output.spec import ReasoningFormat, ToolFormat

HERE = Path(__file__).parent
PARTS = HERE / "parts"
HOSTILE = HERE.parent / "tests" / "hostile"

ERRORS = """# Errors

Every error has the error body of the client's wire API, whatever its status. In OpenAI's APIs:

```json
{"error": {"message": "...", "type": "...", "param": "messages[0].role", "code": "..."}}
```

`param` names the field that caused the error, or is null. If a stream fails after its first event,
the error is an event of the API: chat completions send this object as a `data:` event and then
`data: [DONE]`. 429 and 503 have `Retry-After`. Errors that a retry cannot fix have
`x-should-retry: false`. This page is generated from `errors.py`.

If a field cannot be honoured and the request is strict about it, the request gets an error.
Otherwise the response, whole or streamed, has an `x-dragoman-warning` header with one sentence for
each such field.

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
    results = yaml.safe_load((PARTS / "misses.yaml").read_text(encoding="utf-8"))
    prose = (PARTS / "formats.md").read_text(encoding="utf-8")
    return prose.format(
        tools=make_table(get_tool_formats().values()),
        reasoning=make_table(get_reasoning_formats().values()),
        cases=results["score"],
        consensus=make_misses_table(results["consensus"]),
        single=make_misses_table(results["single"]),
    )


def make_misses_table(rows: Iterable[tuple[int, str, list[str]]]) -> str:
    """Return a table of cases with another result than ours, by policy."""
    lines = ["| policy | why | cases |", "|---|---|---|"]
    for policy, reason, cases in rows:
        lines.append(f"| {policy} | {reason} | {', '.join(f'`{case}`' for case in cases)} |")
    return "\n".join(lines)


def make_table(entries: Iterable[ToolFormat | ReasoningFormat]) -> str:
    lines = ["| name | models | example | also known as | known from |", "|---|---|---|---|---|"]
    for entry in entries:
        text = entry.example.replace("|", "\\|").replace("\n", "⏎")
        fence = "``" if "`" in text else "`"
        other_names = ", ".join(f"`{alias}`" for alias in entry.aliases)
        known_from = f"{entry.evidence}: {entry.sources}" if entry.sources else entry.evidence
        cells = (f"`{entry.name}`", entry.models, f"{fence} {text} {fence}", other_names)
        lines.append(f"| {' | '.join(cells)} | {known_from} |")
    return "\n".join(lines)


def make_configuration_page() -> str:
    """Return the prose of `parts/configuration.md` with a table for each group of settings."""
    tables = []
    for group in config.GROUPS:
        fields = [
            field for field in config.list_settings().values() if field.setting.group == group
        ]
        rows = [make_setting_row(field) for field in fields if not field.setting.is_file_only]
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
    cells += ["`{}.{}`".format(*config.name_key(field)) if field.setting.is_in_file else ""]
    text = field.setting.help
    if field.setting.choices:
        text += ": " + ", ".join(field.setting.choices)
    cells += [field.default_text, text]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# The tables of figures that hostile tests add, and the target of the Makefile that measures them
FIGURES = {"fuzz": "test-fuzz", "soak": "test-soak"}
FIGURES |= dict.fromkeys(("lag", "cost", "fairness", "overload", "hang"), "test-hostile")


def make_reliability_page() -> str:
    """Return the prose of `parts/reliability.md` with what the hostile tests show."""
    parts = {}
    for kind, letter in (("holes", ""), ("faults", "F")):
        sections = yaml.safe_load((HOSTILE / f"{kind}.yaml").read_text(encoding="utf-8"))
        entries = [entry for section in sections.values() for entry in section]
        results = read_reliability(kind)
        parts[kind] = make_reliability_table(sections, results, letter)
        tested = sum("answer" in entry for entry in entries)
        cases = sum(count_reliability_cases(results, entry["number"]) for entry in entries)
        parts[f"{kind}_summary"] = (
            f"The server withstands {tested} of {len(entries)} ({cases:,} cases)."
        )
        if tested < len(entries):
            parts[f"{kind}_summary"] += (
                f" The other {len(entries) - tested} cannot occur here, for the reasons given."
            )
    for name, target in FIGURES.items():
        parts[name] = make_figures_table(read_reliability(name), f"make {target}")
    return (PARTS / "reliability.md").read_text(encoding="utf-8").format(**parts)


def read_reliability(name: str) -> dict[str, Any]:
    path = PARTS / "reliability" / f"{name}.json"
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return results


def count_reliability_cases(results: dict[str, Any], number: int) -> int:
    return sum(result["cases"] for result in results.get(str(number), {}).values())


def make_reliability_table(
    sections: dict[str, list[dict[str, Any]]], results: dict[str, Any], letter: str
) -> str:
    """One table; a row in bold begins each section."""
    has_records = any("record" in entry for section in sections.values() for entry in section)
    head = ["#", "record", "what was tried", "what the server does", "cases"]
    columns = head if has_records else [head[0], *head[2:]]
    lines = ["| " + " | ".join(columns) + " |", "|--:|" + "---|" * (len(columns) - 2) + "--:|"]
    for title, entries in sections.items():
        lines += [f"| | **{title[0].upper()}{title[1:]}** |" + " |" * (len(columns) - 2)]
        for entry in entries:
            answer = entry.get("answer") or f"*Not applicable:* {entry['reason']}"
            cells = [f"{letter}{entry['number']}", entry["tried"], answer]
            cells += [f"{count_reliability_cases(results, entry['number']):,}"]
            if has_records:
                cells.insert(1, entry["record"])
            lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"]
    return "\n".join(lines)


def make_figures_table(figures: dict[str, Any], command: str) -> str:
    if not figures:
        return f"Not measured yet: run `{command}`."
    lines = ["| figure | value |", "|---|--:|"]
    for name, value in figures.items():
        text = f"{value:,}" if isinstance(value, int | float) else str(value)
        lines += [f"| {name.replace('_', ' ')} | {text} |"]
    return "\n".join(lines)


PAGES = {
    "errors.md": make_errors_page,
    "formats.md": make_formats_page,
    "configuration.md": make_configuration_page,
    "reliability.md": make_reliability_page,
}

if __name__ == "__main__":
    for name, make_page in PAGES.items():
        (HERE / name).write_text(make_page(), encoding="utf-8")
