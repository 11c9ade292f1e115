"""The largest bodies that each route accepts, in shapes that are expensive to handle.

A route has a template of its body, with TEXT or ITEMS in the place that is filled. A shape fills it
with one long text, or with as many small items as fit.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

MODEL = "scripted"
_USER = '{"role":"user","content":TEXT}'
_HEAD = '{"model":"MODEL","max_tokens":1,'
# The body of each route that takes one, and an item of the list in it
BODIES: dict[str, tuple[str, str]] = {
    "POST /v1/chat/completions": (_HEAD + '"messages":[ITEMS]}', _USER),
    "POST /v1/chat/completions/input_tokens": (_HEAD + '"messages":[ITEMS]}', _USER),
    "POST /v1/completions": (_HEAD + '"prompt":[ITEMS]}', "TEXT"),
    "POST /infill": (_HEAD + '"input_suffix":"","input_prefix":TEXT}', ""),
    "POST /v1/embeddings": ('{"model":"MODEL","input":[ITEMS]}', "TEXT"),
    "POST /v1/messages": (_HEAD + '"messages":[ITEMS]}', _USER),
    "POST /v1/messages/count_tokens": ('{"model":"MODEL","messages":[ITEMS]}', _USER),
    "POST /v1/responses": ('{"model":"MODEL","input":[ITEMS]}', _USER),
    "POST /v1/responses/compact": ('{"model":"MODEL","input":[ITEMS]}', _USER),
    "POST /v1/responses/input_tokens": ('{"model":"MODEL","input":[ITEMS]}', _USER),
    "POST /v1/conversations": ('{"items":[ITEMS]}', '{"type":"message",' + _USER[1:]),
    "POST /v1/conversations/{id}/items": ('{"items":[ITEMS]}', '{"type":"message",' + _USER[1:]),
    "POST /v1/conversations/{id}": ('{"metadata":{"a":TEXT}}', ""),
    "POST /v1/chat/completions/{id}": ('{"metadata":{"a":TEXT}}', ""),
    "POST /tokenize": ('{"model":"MODEL","prompt":TEXT}', ""),
    "POST /apply-template": (_HEAD + '"messages":[ITEMS]}', _USER),
    "POST /detokenize": ('{"model":"MODEL","tokens":[ITEMS]}', "17"),
    "POST /v1/rerank": ('{"model":"MODEL","query":"a","documents":[ITEMS]}', "TEXT"),
    "POST /v2/rerank": ('{"model":"MODEL","query":"a","documents":[ITEMS]}', "TEXT"),
    "POST /v1/score": ('{"model":"MODEL","text_1":"a","text_2":[ITEMS]}', "TEXT"),
    "POST /api/chat": ('{"model":"MODEL","stream":false,"messages":[ITEMS]}', _USER),
    "POST /api/generate": ('{"model":"MODEL","stream":false,"prompt":TEXT}', ""),
    "POST /api/embed": ('{"model":"MODEL","input":[ITEMS]}', "TEXT"),
}
# What a route may answer: it takes the body, or refuses it
STATUSES = (200, 400, 403, 404, 413, 415)
OTHER = ('{"model":TEXT}', "")  # of all other routes
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "1,024",
    "engines",
    "wait",
]


class LargeBody(NamedTuple):
    route: str
    shape: str
    content: bytes


def repeat(unit: str) -> Callable[[int], str]:
    """Return what makes a JSON text of this size; the unit is part of a JSON string."""
    return lambda size: '"' + unit * ((size - 2) // len(unit.encode())) + '"'


def make_prose(size: int) -> str:
    choose = random.Random(size)
    paragraph = " ".join(choose.choice(WORDS) for _ in range(2_000))
    return json.dumps((paragraph + " ") * (size // len(paragraph)))


TEXTS: dict[str, Callable[[int], str]] = {
    "letters": repeat("a"),
    "prose": make_prose,
    "spaces": repeat(" "),
    "escapes": repeat("\\u0041"),
    "quotes": repeat('\\"'),
    "emoji": repeat("\U0001f600"),
    "special tokens": repeat("<|im_end|>"),
    "wide": lambda size: '"\U0001f600' + "a" * (size - 6) + '"',
}


def list_large_bodies(
    routes: list[str], size: int, shapes: Collection[str] = TEXTS
) -> Iterator[LargeBody]:
    """Yield the bodies of these routes, up to a size, with texts of these shapes."""
    texts = {shape: TEXTS[shape](size - 200) for shape in shapes}
    extras = make_unknown_fields(size - 400)
    for route in routes:
        template, item = BODIES.get(route, OTHER)
        template = template.replace("MODEL", MODEL)
        room = size - len(template) - len(item)
        if "TEXT" in item or not item:
            for shape, text in texts.items():
                whole = template.replace("ITEMS", item)
                yield LargeBody(route, shape, whole.replace("TEXT", text).encode())
        if item:
            small = item.replace("TEXT", '"a"')
            for shape, unit, count in (
                ("small items", small, room // (len(small) + 1)),
                ("19,000 items", small, 19_000),
                ("2,000 items", item.replace("TEXT", repeat("b c")(room // 2_000 - 50)), 2_000),
            ):
                content = ",".join([unit] * max(1, min(count, room // (len(unit) + 1))))
                yield LargeBody(route, shape, template.replace("ITEMS", content).encode())
        empty = template.replace("ITEMS", item).replace("TEXT", '"a"')
        for shape, more in extras.items():
            yield LargeBody(route, shape, (empty[:-1] + more + "}").encode())


def make_unknown_fields(size: int) -> dict[str, str]:
    """Make fields that no route knows: one of many lists, and many small ones."""
    names = ",".join(f'"{number:06}":1' for number in range(size // 11))
    return {"lists": ',"x":[' + ",".join(["[]"] * (size // 3)) + "]", "fields": f",{names}"}
