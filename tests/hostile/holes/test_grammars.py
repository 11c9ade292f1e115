"""Schemas, grammars and patterns of clients, on a server that compiles them as for any engine.

`tests/grammar/test_hostile.py` sends the same values to the real engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.testing import ScriptedEngine
from tests.support.forbidden_port import watch_port
from tests.support.hostile_constraints import FIELDS, MODEL, VALUES, HostileCase
from tests.support.hostile_http import HostileServer, serve_hostile
from tests.support.hostile_load import (
    check_still_works,
    serve_under_attack,
)

HEADERS = {"content-type": "application/json"}
SLOWEST = 15.0  # seconds of any response, on a machine that is busy with other tests


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    engine = ScriptedEngine("Hello there!", tokens=True, grammars=True, context=4096)
    with serve_hostile(engine, name=MODEL) as hostile:
        hostile.send("POST", "/v1/completions", json={"model": MODEL, "prompt": "a", "regex": "a"})
        yield hostile
        assert hostile.read_metrics("grammars_(?:compiling|waiting)") == [0.0, 0.0]


def try_values(
    server: HostileServer, kind: str, names: Iterable[str], fields: Iterable[str] = ()
) -> dict[str, int]:
    """Send values in some of their fields, every other streamed; return the statuses by name."""
    statuses: dict[str, int] = {}
    for index, name in enumerate(names):
        for field in fields or [list(FIELDS[kind])[index % len(FIELDS[kind])]]:
            case = HostileCase(kind, name, field)
            body = case.body('"stream":true,' if index % 2 else "")
            started = server.engine.started
            response = server.send("POST", case.path, content=body, headers=HEADERS)
            assert response.status_code in (200, 400, 413), (str(case), response.text)
            assert response.elapsed.total_seconds() < SLOWEST, str(case)
            if response.status_code != 200:
                assert server.engine.started == started
            statuses[name] = max(response.status_code, statuses.get(name, 0))
    return statuses


def test_hole_11_the_grammar_cache_is_bounded(
    server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    """The limit is 512 grammars and 32 MB; `make test-constraints` sends 100,000 schemas."""
    bodies = [
        {"type": "object", "properties": {f"key_{index}": {"type": "integer", "maximum": index}}}
        for index in range(60)
    ]
    for schema in bodies:
        body = {"model": MODEL, "prompt": "a", "guided_json": schema}
        assert server.send("POST", "/v1/completions", json=body).status_code == 200
    [entries], [size] = map(server.read_metrics, ("grammars_cached", "grammars_cached_bytes"))
    assert 0 < entries <= 512
    assert 0 < size <= 32 << 20
    count_cases(len(bodies))


def test_hole_12_no_field_chooses_a_backend_and_nothing_is_written(
    server: HostileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grammar that the engine gets is the same with and without these fields."""
    monkeypatch.chdir(tmp_path)
    for path, extra in (
        ("/v1/completions", {"guided_decoding_backend": "outlines"}),
        ("/v1/completions", {"guided_decoding_backend": "../../tmp/x:disable-any-whitespace"}),
        ("/v1/completions", {"structured_outputs_backend": "lm-format-enforcer"}),
        ("/v1/completions", {"backend": "xgrammar", "grammar_backend": "outlines"}),
    ):
        body = {"model": MODEL, "prompt": "a", "regex": "[ab]{3}"}
        assert server.send("POST", path, json=body).status_code == 200
        plain = server.engine.jobs[-1].grammar
        response = server.send("POST", path, json={**body, **extra})
        assert response.status_code == 400 or "no effect" in response.headers["x-dragoman-warning"]
        assert server.engine.jobs[-1].grammar == plain
    nested = {"model": MODEL, "prompt": "a", "structured_outputs": {"regex": "a", "backend": "x"}}
    assert server.send("POST", "/v1/completions", json=nested).status_code in (200, 400)
    assert not list(tmp_path.iterdir())


RECURSIVE_SCHEMAS = ["itself", "itself in a choice", "each other", "a tree", "no end"]
RECURSIVE_SCHEMAS += ["all of each other", "allOf of itself", "$dynamicRef"]
RECURSIVE_GRAMMARS = [name for name in VALUES["grammar"] if name.startswith("recursive")]


def test_hole_13_recursion_without_end(
    server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    schemas = try_values(server, "schema", RECURSIVE_SCHEMAS)
    grammars = try_values(server, "grammar", RECURSIVE_GRAMMARS)
    assert schemas["itself"] == schemas["each other"] == 400
    assert len(grammars) >= 8
    count_cases(len(schemas) + len(grammars))


@pytest.mark.parametrize(
    ("name", "status"), [("20,000 values", 400), ("5,000 values", 200), ("one of 5 MB", 400)]
)
def test_hole_14_large_enums(server: HostileServer, name: str, status: int) -> None:
    for field in ("response_format strict", "guided_json"):
        assert try_values(server, "schema", [name], [field]) == {name: status}
    assert try_values(server, "schema", [name], ["tools auto"]) == {name: 400}  # limits are lower


@pytest.mark.parametrize(
    "field", ["response_format strict", "tools required strict", "guided_json"]
)
def test_hole_15_deep_schemas(
    server: HostileServer, field: str, count_cases: Callable[[int], None]
) -> None:
    names = [name for name in VALUES["schema"] if name.split(" ")[0].replace(",", "").isdigit()]
    names = [name for name in names if name.endswith(("arrays", "objects", "anyOf", "not"))]
    statuses = try_values(server, "schema", names, [field])
    for name, status in statuses.items():
        if int(name.split(" ")[0].replace(",", "")) >= 1_000:
            assert status == 400, name
    count_cases(len(statuses))


def test_hole_16_patterns_that_explode(
    server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    statuses = try_values(server, "pattern", VALUES["pattern"], ["regex"])
    assert len(statuses) >= 20
    for name in ("[", "(", "*", "a{2,1}"):
        assert statuses[name] == 400
    count_cases(len(statuses))


def test_hole_17_every_field_that_takes_a_pattern_has_the_same_limits(
    server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    names = ["(a*)*b", "(.*a){2000}", "([a-z]{1,60}x?){1,60}", "a{1000000}", "[", "a megabyte"]
    for name in names:
        statuses = {
            field: try_values(server, "pattern", [name], [field])[name]
            for field in FIELDS["pattern"]
        }
        if name == "[":  # a schema that is not strict is used without its broken pattern
            case = HostileCase("pattern", name, "schema")
            response = server.send("POST", case.path, content=case.body(""), headers=HEADERS)
            assert "pattern" in response.headers["x-dragoman-warning"]
            assert statuses.pop("schema") == 200
        assert len(set(statuses.values())) == 1, (name, statuses)
    count_cases(len(names) * len(FIELDS["pattern"]))


COSTLY = ["300 objects", "2000 objects", "10 to the 20", "2 to the 62", "doubling members"]
COSTLY += ["doubling choices", "tripling oneOf", "oneOf of 300", "60 members of 60"]


def test_hole_18_schemas_and_grammars_have_the_time_limit_of_patterns(
    server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    """Meanwhile the event loop is free, which is checked when the server of this module stops."""
    wide = [name for name in VALUES["grammar"] if name.startswith("wide")]
    schemas = try_values(server, "schema", COSTLY, ["response_format strict", "tools auto"])
    grammars = try_values(server, "grammar", wide)
    assert set(schemas.values()) == {400}  # each at least for tools, whose limits are lower
    for name in ("10,000 rules", "doubling rules", "too long", "intersections"):
        assert grammars[f"wide, {name}"] == 400
    count_cases(2 * len(schemas) + len(grammars))


# Fields of a request, each with values that are wrong.
WRONG_VALUES: dict[str, list[Any]] = {
    "response_format": [
        *({}, [], 5, "json", {"type": None}, {"type": "x"}, {"type": "json_schema"}),
        {"type": "json_schema", "json_schema": None},
        {"type": "json_schema", "json_schema": {}},
        {"type": "json_schema", "json_schema": []},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": 5}},
    ],
    "structured_outputs": [
        *([], 5, "x", {"json": 5}, {"regex": 5}, {"json": {}, "regex": "a"}, {"choice": []}),
    ],
    "grammar": [[], 5, {}, {"type": "x", "grammar": "a"}],
    "regex": [[], 5, {}],
    "choice": [[], 5, {}, [5], [None], "a"],
    "guided_json": [[], 5, "x", "{", "[]"],
    "guided_regex": [[], 5, {}],
}
DEGENERATE = [{name: value} for name, values in WRONG_VALUES.items() for value in values]
DEGENERATE += [{"regex": "a", "choice": ["b"]}, {"guided_json": {}, "guided_regex": "a"}]


@pytest.mark.parametrize("streamed", [False, True])
def test_hole_19_degenerate_constraints_never_reach_the_engine(
    server: HostileServer, streamed: bool, count_cases: Callable[[int], None]
) -> None:
    for path, prompt in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", {"prompt": "a"}),
    ):
        for fields in DEGENERATE:
            started = server.engine.started
            body = {"model": MODEL, **prompt, **fields, "stream": streamed}
            response = server.send("POST", path, json=body)
            assert response.status_code == 400, fields
            assert server.engine.started == started
            assert response.json()["error"]["message"]
    count_cases(2 * len(DEGENERATE))


MALFORMED = [name for name in VALUES["schema"] if name.startswith('"')]
MALFORMED += [
    "null",
    "a list",
    "a text",
    "NaN",
    "Infinity",
    "1e400",
    "beyond floats",
    "two of a name",
]
REMOTE = ["http", "a file", "metadata", "a relative one", "into a value", "an odd pointer"]


def make_remote_schemas(port: int) -> list[dict[str, Any]]:
    url = f"http://127.0.0.1:{port}/schema.json"
    return [
        {"$ref": url},
        {"$schema": url, "type": "object"},
        {"$id": url, "$ref": "other.json"},
        {"properties": {"a": {"$ref": f"{url}#/a"}}},
        {"$dynamicRef": url},
        {"$defs": {"a": {"$ref": url}}, "$ref": "#/$defs/a"},
        {"anyOf": [{"$ref": url}, {"type": "string"}]},
        {"items": {"$recursiveRef": url}},
        {"$vocabulary": {url: True}, "type": "string"},
    ]


def test_hole_20_malformed_schemas_of_tools(
    server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    fields = ["tools auto", "tools required strict", "tools named"]
    statuses = try_values(server, "schema", [*MALFORMED, *REMOTE], fields)
    count = len(statuses) * len(fields)
    with watch_port() as (port, connections):
        for schema in make_remote_schemas(port):
            for strict in (False, True):
                function = {"name": "act", "parameters": schema, "strict": strict}
                body = {
                    "model": MODEL,
                    "messages": [{"role": "user", "content": "a"}],
                    "tools": [{"type": "function", "function": function}],
                    "tool_choice": "required",
                }
                response = server.send("POST", "/v1/chat/completions", json=body)
                assert response.status_code in (200, 400)
                count += 1
        assert not connections
    count_cases(count)


def test_hole_21_malformed_schemas_of_answers(
    server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    fields = ["response_format strict", "response_format", "guided_json", "structured_outputs.json"]
    statuses = try_values(server, "schema", [*MALFORMED, *REMOTE], fields)
    for name in ("http", "a file", "metadata", '"type":5', '"pattern":"["', "null"):
        assert statuses[name] == 400
    count = len(statuses) * len(fields)
    with watch_port() as (port, connections):
        for schema in make_remote_schemas(port):
            body = {"model": MODEL, "prompt": "a", "guided_json": schema}
            assert server.send("POST", "/v1/completions", json=body).status_code in (200, 400)
            count += 1
        assert not connections
    count_cases(count)


NESTED_GROUPS = [
    "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000,
    "root ::= " + "(" * 6_000 + '"a"' + ")*" * 6_000,
    'root ::= (("a"*)*)*',
    'root ::= "a"{1,99999999}',
    'root ::= (("a"{1,1000}){1,1000}){1,1000}',
    "start: " + "(" * 60_000 + '"a"' + ")" * 60_000,
]
DIRECTIVES = [
    "%llguidance",
    "%llguidance {}",
    '%llguidance {"x":',
    "%llguidance \x00",
    "%llguidance\n",
]
DIRECTIVES += ['%llguidance {}\nstart: "a"', "%llguidance {" * 1000]


def send_grammar(server: HostileServer, grammar: str) -> int:
    body = {"model": MODEL, "prompt": "a", "grammar": grammar}
    return server.send("POST", "/v1/completions", json=body).status_code


@pytest.mark.parametrize("grammar", NESTED_GROUPS, ids=lambda grammar: grammar[:24])
def test_hole_26_nested_groups(server: HostileServer, grammar: str) -> None:
    assert send_grammar(server, grammar) == 400 or len(grammar) < 1_000


@pytest.mark.parametrize("grammar", DIRECTIVES, ids=lambda grammar: repr(grammar[:24]))
def test_hole_27_directives(server: HostileServer, grammar: str) -> None:
    assert send_grammar(server, grammar) in (200, 400)


@pytest.mark.real_model
def test_hole_26_nested_groups_and_directives_on_the_real_engine(default_model: Path) -> None:
    """The engine is the same process afterwards, and works."""
    with serve_under_attack(default_model) as attacked:
        for grammar in [*NESTED_GROUPS, *DIRECTIVES]:
            body = {"model": MODEL, "prompt": "a", "grammar": grammar, "max_tokens": 4}
            assert attacked.client.post("/v1/completions", json=body).status_code in (200, 400)
        check_still_works(attacked)
