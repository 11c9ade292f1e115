"""Writes the pages of docs/ that come from the code. A test checks that they are up to date."""

from __future__ import annotations

from pathlib import Path

from dragoman.errors import KINDS, DragomanError

HERE = Path(__file__).parent

ERRORS = """# Errors

Every error, whatever the status, has one body, written in the client's dialect:

```json
{"error": {"message": "...", "type": "...", "param": "messages[0].role", "code": "..."}}
```

`param` is the field that is to blame, or null. A stream that breaks after its first event sends the
same object as a `data:` event and then `data: [DONE]`. 429 and 503 carry `Retry-After`. Errors that
would come again carry `x-should-retry: false`. This page is generated from `errors.py`.

| status | type | code | name |
|--:|---|---|---|
"""


def errors_page() -> str:
    rows = [
        f"| {kind.status} | `{kind.type}` | `{kind.code}` | {name} |"
        for name, kind in sorted(KINDS.items(), key=lambda item: (item[1].status, item[0]))
        if kind is not DragomanError and kind.code is not None
    ]
    return ERRORS + "\n".join(rows) + "\n"


PAGES = {"errors.md": errors_page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
