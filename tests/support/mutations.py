"""Mutations of valid requests, each reproducible by its seed and number.

A request is mutated as a tree (types, numbers, keys, nesting), as text (doubled keys, numbers that
encoders cannot write), as bytes (truncation, encodings) and as HTTP (methods, headers, queries, ids
of others). `make_mutant` applies one to three of them, chosen by a generator of its own for each
number, so that a failure is found again without those before it.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from msgspec import Struct

from dragoman.http.asgi import WEBSOCKET
from tests.support.recorded_requests import RecordedRequest

RAW = "\ue000RAW:"  # marks a text that is written into the JSON as it is
RAW_TEXT = re.compile(rf'"{RAW}([^"]*)"')
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "get", "X")
NUMBERS: list[Any] = [
    *(0, -0.0, -1, 1, 2, 0.5, -0.5, 1e-300, 1e308, -1e308, 2**31, -(2**31) - 1, 2**53 + 1),
    *(2**63, -(2**63) - 1, 2**64, 10**400),
    *(f"{RAW}{text}" for text in ("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400")),
    *(f"{RAW}{text}" for text in ("01", "+1", ".5", "1.", "0x10", "1_000", "-", "--1", "1e")),
]
TEXTS: list[Any] = [
    *(
        "",
        " ",
        "a",
        "\0",
        "\x1b[2J",
        "a\r\nb",
        "../../etc/passwd",
        "%s%n{}{{x}}",
        "'; DROP TABLE--",
    ),
    *("<|im_end|>", "<tool_call>", "\u202e\u0301", "😀" * 50, "x" * 5000, "null", "true", "auto"),
    *("\ud800", f'{RAW}"\\ud83d"', f"{RAW}undefined", f"{RAW}'a'", f'{RAW}"\\x41"', "data:,"),
    *("http://127.0.0.1:9/", "file:///etc/passwd", "resp_" + "0" * 48, "gpt-4", "scripted"),
]
STRUCTURES: list[Any] = [
    *(None, True, False, [], {}, [[]], [None], {"": None}, [{}], {"a": {"b": {"c": 1}}}),
    *([1, "a", None, {}], {"type": None}, {"type": "text"}, {"type": "object"}, ["a"] * 300),
]
HEADERS: list[tuple[str, str]] = [
    *(("content-type", text) for text in ("text/plain", "application/json; charset=utf-16", "")),
    *(("content-type", text) for text in ("application/x-www-form-urlencoded", "a/b/c;;;=")),
    *(("content-encoding", text) for text in ("gzip", "deflate", "br", "identity", "x")),
    *(("accept", text) for text in ("text/html", "application/xml", "*/*;q=0", "")),
    *(("anthropic-version", text) for text in ("2023-06-01", "0", "\xff")),
    *(("x-dragoman-timings", "1"), ("x-dragoman-trace", "x"), ("x-dragoman-debug", "1")),
    *(("traceparent", "00-" + "f" * 32), ("traceparent", "x"), ("x-request-id", "a\tb" * 100)),
    *(
        ("idempotency-key", "a"),
        ("last-event-id", "-5"),
        ("range", "bytes=5-1"),
        ("te", "trailers"),
    ),
    *(("expect", "100-continue"), ("upgrade", "h2c"), ("cookie", "a=b" * 500), ("x-a", "b" * 3000)),
    *(("authorization", "Basic x"), ("x-api-key", "wrong"), ("origin", "null"), ("host", "a b")),
]
QUERIES = (
    *("", "?", "?stream=true", "?limit=-1", "?limit=1e9", "?limit=abc", "?after=%00", "?order=x"),
    *("?include[]=a&include[]=b", "?starting_after=99999999999999999999", "?a=" + "b" * 2000),
    *("?stream=true&starting_after=-1", "?%ff=%fe", "?&&&==", "?model=nobody", "?metadata[a]=b"),
)
ID_TEXTS = ("a", "%00", "%2e%2e%2f", "resp_" + "0" * 48, "x" * 300, "%F0%9F%98%80", "'", "-1")


class Mutant(Struct):
    """A request to send."""

    number: int
    route: str  # the method and the path of the valid request
    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    is_websocket: bool = False

    @property
    def sent_text(self) -> str:
        return f"{self.headers}{self.body.decode('utf-8', 'replace')}"


class MutationContext(NamedTuple):
    """What mutations take from the server under test."""

    recorded: Sequence[RecordedRequest]
    field_names: Sequence[str]  # of all wire APIs
    ids: Sequence[str]  # of the client's own objects, and of those of others


def make_mutant(seed: int, number: int, context: MutationContext) -> Mutant:
    """Make the mutant with a number; the same one each time."""
    rng = random.Random(f"{seed}:{number}")
    recorded = context.recorded[number % len(context.recorded)]
    route = recorded.route
    is_websocket = route.method == WEBSOCKET
    tree = copy.deepcopy(recorded.body)
    kinds = rng.choices(
        ("tree", "text", "bytes", "http"), (70, 12, 10, 8), k=rng.choice((1, 1, 2, 3))
    )
    if tree is not None:
        for _ in range(kinds.count("tree")):
            tree = rng.choice(TREE_MUTATIONS)(rng, tree, context)
    text = "" if tree is None else write_json(tree)
    for _ in range(kinds.count("text")):
        text = rng.choice(TEXT_MUTATIONS)(rng, text)
    body = text.encode("utf-8", "surrogatepass")
    for _ in range(kinds.count("bytes")):
        body = rng.choice(BYTE_MUTATIONS)(rng, body)
    path = fill_path(rng, route.path, context)
    mutant = Mutant(
        number, f"{route.method} {route.path}", route.method, path, [], body, is_websocket
    )
    if is_websocket:
        return mutant
    if recorded.body is None or "http" in kinds:
        mutate_http(rng, mutant)
    return mutant


def fill_path(rng: random.Random, path: str, context: MutationContext) -> str:
    """Replace the parameters of a path by ids: the client's own, those of others, and nonsense."""

    def choose(match: re.Match[str]) -> str:
        if match[1].startswith("model"):
            return rng.choice(("scripted", "nobody", "a/b/c", "%00"))
        return rng.choice(ID_TEXTS) if rng.random() < 0.3 else quote(rng.choice(context.ids))

    return re.sub(r"\{(\w+)(?:\.\.\.)?\}", choose, path)


def mutate_http(rng: random.Random, mutant: Mutant) -> None:
    for _ in range(rng.randint(1, 3)):
        match rng.randrange(4):
            case 0:
                mutant.method = rng.choice(METHODS)
            case 1:
                mutant.path = mutant.path.partition("?")[0] + rng.choice(QUERIES)
            case 2:
                mutant.headers.append(rng.choice(HEADERS))
            case _:
                mutant.path = rng.choice(PATH_MUTATIONS)(mutant.path)


PATH_MUTATIONS: tuple[Callable[[str], str], ...] = (
    lambda path: path + "/",
    lambda path: path.removeprefix("/v1"),
    lambda path: path.upper(),
    lambda path: "/" + path,
    lambda path: path + "/%2e%2e",
    lambda path: path + "/a" * 80,
    lambda path: path.replace("/", "/%2f", 1),
)


def write_json(tree: Any) -> str:
    """Write JSON; texts that are marked as raw are written without quotes and escapes."""
    text = json.dumps(tree, ensure_ascii=False, default=str)
    return RAW_TEXT.sub(lambda match: match[1].replace('\\"', '"').replace("\\\\", "\\"), text)


# Trees


def list_places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """List the places of all values: the object or list that has them, and the key or index."""
    entries: Any = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in entries:
        yield tree, key
        if isinstance(value, dict | list):
            yield from list_places(value)


def choose_place(rng: random.Random, tree: Any) -> tuple[Any, Any]:
    places = list(list_places(tree)) if isinstance(tree, dict | list) else []
    return rng.choice(places) if places else ({"": tree}, "")


def choose_value(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(rng.choice((NUMBERS, TEXTS, STRUCTURES))))


def replace_value(rng: random.Random, tree: Any, _: MutationContext) -> Any:
    holder, key = choose_place(rng, tree)
    holder[key] = choose_value(rng)
    return tree


def remove_value(rng: random.Random, tree: Any, _: MutationContext) -> Any:
    holder, key = choose_place(rng, tree)
    del holder[key]
    return tree


def add_field(rng: random.Random, tree: Any, context: MutationContext) -> Any:
    """Add a field: one of any wire API, or one that nobody knows."""
    places = [holder[key] for holder, key in list_places(tree)] if isinstance(tree, dict) else []
    objects = [value for value in (tree, *places) if isinstance(value, dict)]
    if objects:
        name = rng.choice(context.field_names) if rng.random() < 0.8 else rng.choice(TEXTS)
        rng.choice(objects[:1] * 3 + objects)[str(name).replace(RAW, "")] = choose_value(rng)
    return tree


def rename_key(rng: random.Random, tree: Any, context: MutationContext) -> Any:
    holder, key = choose_place(rng, tree)
    if isinstance(holder, dict):
        value = holder.pop(key)
        changed = (
            str(key) + "s",
            str(key).upper(),
            " " + str(key),
            "",
            rng.choice(context.field_names),
        )
        holder[rng.choice(changed)] = value
    return tree


def nest_value(rng: random.Random, tree: Any, _: MutationContext) -> Any:
    holder, key = choose_place(rng, tree)
    value = holder[key]
    for _level in range(rng.choice((1, 1, 2, 70, 150))):
        value = {"a": value} if rng.random() < 0.5 else [value]
    holder[key] = value
    return tree


def repeat_value(rng: random.Random, tree: Any, _: MutationContext) -> Any:
    holder, key = choose_place(rng, tree)
    value, times = holder[key], rng.choice((2, 17, 300))
    if isinstance(value, str | list):
        holder[key] = value * times
    elif isinstance(holder, list):
        holder.extend([value] * times)
    return tree


def swap_values(rng: random.Random, tree: Any, _: MutationContext) -> Any:
    (holder, key), (other, other_key) = choose_place(rng, tree), choose_place(rng, tree)
    value = copy.deepcopy(other[other_key])
    other[other_key] = copy.deepcopy(holder[key])
    holder[key] = value
    return tree


def replace_root(rng: random.Random, _tree: Any, _: MutationContext) -> Any:
    return choose_value(rng)


def put_id(rng: random.Random, tree: Any, context: MutationContext) -> Any:
    """Put an id of the client, or of another, where ids can be."""
    if isinstance(tree, dict):
        name = rng.choice(("previous_response_id", "conversation", "id", "item_id", "user"))
        tree[name] = rng.choice(context.ids)
    return tree


TREE_MUTATIONS = (
    *(replace_value,) * 6,
    *(remove_value, remove_value, add_field, add_field, add_field),
    *(rename_key, nest_value, repeat_value, swap_values, replace_root, put_id),
)

# Texts


def double_key(rng: random.Random, text: str) -> str:
    keys = list(re.finditer(r'"(\w+)": ', text))
    if not keys:
        return text + text
    key = rng.choice(keys)
    value = rng.choice(("null", "1", '"a"', "[]", "{}"))
    return f"{text[: key.start()]}{key[0]}{value}, {text[key.start() :]}"


def insert_text(rng: random.Random, text: str) -> str:
    place = rng.randint(0, len(text))
    piece = rng.choice(
        (",", "}", "]", '"', "\\", "//", "/**/", "\0", "\u2028", "\ufeff", "NaN", "'")
    )
    return text[:place] + piece + text[place:]


def cut_text(rng: random.Random, text: str) -> str:
    start, end = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    return text[:start] + text[end:] if rng.random() < 0.5 else text[:end]


def nest_text(rng: random.Random, text: str) -> str:
    """Put very deep nesting in the place of a value, closed or not."""
    keys = list(re.finditer(r'"\w+": ', text))
    if not keys:
        return "[" * 1000
    place, levels = rng.choice(keys).end(), rng.choice((200, 2_000, 50_000))
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}")))
    value = opening * levels + "0" + closing * rng.choice((levels, 0))
    return f'{text[:place]}{value}, "b": {text[place:]}'


TEXT_MUTATIONS = (double_key, insert_text, cut_text, nest_text)

# Bytes


def flip_byte(rng: random.Random, body: bytes) -> bytes:
    changed = bytearray(body or b"{}")
    for _ in range(rng.choice((1, 1, 5))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def encode_otherwise(rng: random.Random, body: bytes) -> bytes:
    text = body.decode("utf-8", "replace")
    encoding = rng.choice(("utf-16", "utf-32", "utf-8-sig", "latin-1", "utf-7", "cp037"))
    return text.encode(encoding, "replace")


def replace_body(rng: random.Random, body: bytes) -> bytes:
    bodies = (b"", b" ", b"\0", b"null", b"[]", b"{", b"\xff\xfe", b"[" * 2000, b'{"a":' * 2000)
    return rng.choice((*bodies, body + body, gzip.compress(body), body + b"\0", b"\n" + body))


BYTE_MUTATIONS = (flip_byte, encode_otherwise, replace_body)
