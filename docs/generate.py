"""Writes the pages of docs/ that come from the code. A test checks that they are up to date."""

from __future__ import annotations

import ast
from pathlib import Path

import yaml

from dragoman.errors import ERROR_CLASSES, DragomanError
from dragoman.formats import reasoning_formats, tool_formats

HERE = Path(__file__).parent
PARTS = HERE / "parts"

ERRORS = """# Errors

Every error, whatever the status, has one body, written in the client's dialect:

```json
{"error": {"message": "...", "type": "...", "param": "messages[0].role", "code": "..."}}
```

`param` is the field that is to blame, or null. A stream that breaks after its first event sends the
same object as a `data:` event and then `data: [DONE]`. 429 and 503 carry `Retry-After`. Errors that
would come again carry `x-should-retry: false`. This page is generated from `errors.py`.

What was asked for and is not kept to is an error if the request is strict about it. Otherwise the
answer, whole or streamed, says so in `x-dragoman-warning` headers, a sentence each.

| status | type | code | name |
|--:|---|---|---|
"""


def other_codes() -> list[str]:
    """Codes that the code gives to an error in place of its kind's own."""
    found = set()
    for path in (HERE.parent / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ERROR_CLASSES:
                found |= {
                    word.value.value
                    for word in node.keywords
                    if word.arg == "code" and isinstance(word.value, ast.Constant)
                }
    return sorted(found)


def errors_page() -> str:
    rows = [
        f"| {kind.status} | `{kind.type}` | `{kind.code}` | {name} |"
        for name, kind in sorted(ERROR_CLASSES.items(), key=lambda item: (item[1].status, item[0]))
        if kind is not DragomanError and kind.code is not None
    ]
    others = ", ".join(f"`{code}`" for code in other_codes())
    return ERRORS + "\n".join(rows) + f"\n\nA 400 says more precisely what is wrong: {others}.\n"


def formats_page() -> str:
    """Prose with the tables of all formats in it."""
    tools = [(one.name, one.models, one.example, one.aliases) for one in tool_formats().values()]
    reasoning = [
        (one.name, one.models, one.example, tuple(one.aliases))
        for one in reasoning_formats().values()
    ]
    measured = yaml.safe_load((PARTS / "misses.yaml").read_text(encoding="utf-8"))
    misses = "\n".join(f"- `{case}`: {why}" for case, why in measured["misses"])
    prose = (PARTS / "formats.md").read_text(encoding="utf-8")
    return prose.format(
        tools=table(tools), reasoning=table(reasoning), cases=measured["score"], misses=misses
    )


def table(rows: list[tuple[str, str, str, tuple[str, ...]]]) -> str:
    lines = ["| name | models | example | also known as |", "|---|---|---|---|"]
    for name, models, example, aliases in rows:
        shown = example.replace("|", "\\|").replace("\n", "⏎")
        fence = "``" if "`" in shown else "`"
        also = ", ".join(f"`{alias}`" for alias in aliases)
        lines.append(f"| `{name}` | {models} | {fence} {shown} {fence} | {also} |")
    return "\n".join(lines)


PAGES = {"errors.md": errors_page, "formats.md": formats_page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
