"""The sandbox and its budget: what a template can do, cannot access, and may cost."""

from __future__ import annotations

import ast
import datetime
import json
import subprocess
import sys
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dragoman.errors import BadRequest, ModelBroken, TemplateRejected, Unsupported
from dragoman.prompt.renderer import PromptRenderer
from dragoman.prompt.template import filters
from dragoman.prompt.template.budget import RenderBudget, RenderLimits
from dragoman.prompt.template.template import (
    RESERVED_VARIABLES,
    ChatTemplate,
    GenerationTag,
    compile_template,
)
from tests.support.paths import TESTS
from tests.support.timing import measures_time

pytestmark = pytest.mark.slow

HERE = TESTS
DATA = HERE / "templates"
SOURCE = HERE.parent / "src" / "dragoman"
REAL = HERE.parent.parent / "shared" / "exam" / "templates"

BOMBS: dict[str, str] = tomllib.loads((DATA / "bombs.toml").read_text())
ESCAPES: dict[str, dict[str, str]] = tomllib.loads((DATA / "escapes.toml").read_text())
TURNS = [{"role": "user", "content": "Hi"}]


def render(source: str, **variables: Any) -> str:
    return compile_template(source).render({"messages": TURNS, **variables})


def make_reference_environment() -> ImmutableSandboxedEnvironment:
    """Make the environment that model authors test with."""

    def reject(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(value: Any, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **options})

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
    )
    environment.filters |= {"tojson": to_json, "fromjson": json.loads, "from_json": json.loads}
    environment.globals["raise_exception"] = reject
    environment.globals["strftime_now"] = filters.strftime_now  # at the same second
    return environment


# What a template can do

OUTPUTS: dict[str, tuple[str, str]] = {
    "json as it is": ("{{ x|tojson }}", '{"b": "<é&\'>", "a": [1, null, true]}'),
    "json ascii": ("{{ x.b|tojson(ensure_ascii=true) }}", '"<\\u00e9&\'>"'),
    "json indent": ("{{ [1]|tojson(indent=2) }}", "[\n  1\n]"),
    "json separators": ("{{ [1, 2]|tojson(separators=(',', ':')) }}", "[1,2]"),
    "json sorted": ("{{ x|tojson(sort_keys=true) }}", '{"a": [1, null, true], "b": "<é&\'>"}'),
    "json parsed": ("{{ ('[1, 2]'|fromjson)[1] }}", "2"),
    "generation": ("{% generation %}text{% endgeneration %}.", "text."),
    "break": ("{% for i in 'ab' %}{{ i }}{% if i == 'a' %}{% break %}{% endif %}{% endfor %}", "a"),
    "continue": ("{% for i in 'a' %}{% if i %}{% continue %}{% endif %}{{ i }}{% endfor %}", ""),
    "trimmed blocks": ("  {% if true %}\nyes\n  {% endif %}\nno", "yes\nno"),
    "no constants computed early": ("{{ 'a' ~ 1 ~ none }}", "a1None"),
    "a list of its own": ("{% set l = [] %}{% set _ = l.append(3) %}{{ l.pop() }}{{ l }}", "3[]"),
    "python dict": ("{{ x }}", "{'b': \"<é&'>\", 'a': [1, None, True]}"),
    "slices": ("{{ 'abcdef'[1:5:2] }}{{ [1, 2, 3][::-1] }}", "bd[3, 2, 1]"),
    "formats": ("{{ '{}-{:>3}'.format('a', 1) }} {{ '%s.%d' % ('b', 2) }}", "a-  1 b.2"),
    "loop": ("{% for i in 'ab' %}{{ loop.index }}{{ loop.last }}{% endfor %}", "1False2True"),
    "attributes": ("{{ [{'a': 1}, {'a': 2}]|map(attribute='a')|join(',') }}", "1,2"),
    "selection": ("{{ [{'a': 1}, {'b': 2}]|selectattr('a', 'defined')|list|length }}", "1"),
    "sum of lists": ("{{ [[1], [2]]|sum(start=[]) }}", "[1, 2]"),
    "items": ("{% for k, v in x|dictsort %}{{ k }}{% endfor %}", "ab"),
    "html is not escaped": ("{{ '<&>' }}{{ ('<b>'|safe) ~ '<i>' }}", "<&><b><i>"),
    "undefined is nothing": ("[{{ nothing }}{{ x.nothing }}{{ x['nothing'] }}]", "[]"),
    "a key called items": ("{{ {'items': 1}['items'] }}", "1"),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTPUTS)
def test_what_a_template_can_write(name: str) -> None:
    source, expected = OUTPUTS[name]
    assert render(source, x={"b": "<é&'>", "a": [1, None, True]}) == expected


def test_templates_can_write_the_date() -> None:
    assert render("{{ strftime_now('%Y') }}") == str(datetime.datetime.now().year)


@pytest.mark.parametrize("name", ["llama3", "mistral", "gemma", "chatml", "agent", "parts"])
def test_same_text_as_the_environment_of_model_authors(name: str) -> None:
    source = (DATA / f"{name}.jinja").read_text()
    content: Any = [{"type": "text", "text": "Hi & <you>"}] if name == "parts" else "Hi & <you>"
    variables = {
        "messages": [{"role": "user", "content": content}],
        "bos_token": "<s>",
        "add_generation_prompt": True,
    }
    expected = make_reference_environment().from_string(source).render(**variables)
    assert compile_template(source).render(variables) == expected
    assert "Hi & <you>" in expected


def real_templates() -> list[Path]:
    return sorted(REAL.glob("*/*.jinja"))


@pytest.mark.skipif(not real_templates(), reason="the real templates are missing")
def test_real_templates_render_as_their_authors_saw_them() -> None:
    call = {"id": "abcdefghi", "type": "function"}
    call["function"] = {"name": "f", "arguments": {"city": "Oslo", "n": 1}}  # type: ignore[assignment]
    schema = {"type": "object", "properties": {"city": {"type": "string", "description": "c"}}}
    tool = {"type": "function"}
    tool["function"] = {"name": "f", "description": "<é>", "parameters": schema}  # type: ignore[assignment]
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi & <you>"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "f", "tool_call_id": "abcdefghi", "content": "4 °C"},
    ]
    environment, same = make_reference_environment(), 0
    for path in real_templates():
        ours, theirs = compile_template(path.read_text()), environment.from_string(path.read_text())
        for messages, tools in ((turns[:1], None), (turns[:1], [tool]), (turns, [tool])):
            variables: dict[str, Any] = {"messages": messages, "tools": tools}
            variables["add_generation_prompt"] = True
            variables |= {"bos_token": "<s>", "eos_token": "</s>"}
            try:
                expected = theirs.render(**variables)
            except Exception:  # noqa: S112
                continue
            assert ours.render(variables) == expected, path.name
            same += 1
    assert same > 200


# Broken templates and rejected conversations


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ a", "line 1"),
        ("\n\n{% for x in y %}", "line 3"),
        ("{% nonsense %}", "nonsense"),
        ("{{ x|no_such_filter }}", "no_such_filter"),
        ("{% include 'x' %}", "other templates"),
        ("{% extends 'x' %}", "other templates"),
        ("{% block a %}{% endblock %}", "other templates"),
        ("{% autoescape true %}{% endautoescape %}", "other templates"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "too deeply"),
        ("{{ " + "9" * 5000 + " }}", "compiled"),
        ("{% for x in y %}" * 40 + "{% endfor %}" * 40, "compiled"),
        ("x" * 300_000, "too long"),
    ],
)
def test_malformed_template_fails_when_it_is_loaded(source: str, message: str) -> None:
    with pytest.raises(ModelBroken) as caught:
        compile_template(source)
    assert message in caught.value.message
    assert "/" not in caught.value.message.replace("{%", "")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("\n{{ nothing.at.all }}", "line 2"),
        ("{{ nothing + 'a' }}", "nothing"),
        ("{{ {'a': 1}.b.c }}", "has no attribute"),
        ("{{ 'a' + 1 }}", "line 1"),
        ("{{ 1 // 0 }}", "line 1"),
        ("{{ messages.append(1) }}{{ messages }}", "cannot change"),
        ("{{ namespace(a=1).b.c }}", "Namespace object"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too deeply"),
        ("{{ messages() }}", "not a function"),
        ("{{ namespace(a=1) }}", "cannot be written"),
    ],
)
def test_a_template_that_raises_is_the_requests_error(source: str, message: str) -> None:
    template = ChatTemplate(source)
    with pytest.raises(TemplateRejected) as caught:
        template.render({"messages": TURNS}, RenderBudget(known_sizes={id(TURNS): 10}))
    error = caught.value
    assert error.status == 400
    assert message in error.message
    for leak in ("Traceback", "jinja2", "0x", ".py", "/"):
        assert leak not in error.message


def test_compiled_once() -> None:
    assert compile_template("{{ 1 }}") is compile_template("{{ 1 }}")


# Variables that a request may set


def test_variables_that_a_template_reads() -> None:
    source = "{% set x = 1 %}{% for m in messages %}{{ m.a + x }}{% endfor %}{{ enable_thinking }}"
    facts = compile_template(source).facts
    assert facts.variables == {"messages", "enable_thinking"}
    assert facts.client_variables == ("enable_thinking",)


def test_kwargs_that_the_template_reads_are_allowed() -> None:
    compile_template("{{ enable_thinking }}{{ documents }}").check_variables(
        {"enable_thinking": False, "documents": []}
    )


def test_kwargs_that_the_template_does_not_read_are_rejected_by_name() -> None:
    with pytest.raises(Unsupported) as caught:
        compile_template("{{ messages }}{{ thinking }}").check_variables({"enable_thinking": False})
    assert caught.value.param == "chat_template_kwargs.enable_thinking"
    assert "It reads: thinking." in caught.value.message


def test_cve_2025_62426_internal_names_cannot_be_set() -> None:
    assert len(RESERVED_VARIABLES) >= 25
    for name in [
        *RESERVED_VARIABLES,
        "raise_exception",
        "namespace",
        "range",
        "_private",
        "__class__",
    ]:
        template = compile_template("{{ " + name.strip("_") + " }}{{ " + name + " }}")
        with pytest.raises(BadRequest) as caught:
            template.check_variables({name: 1})
        assert caught.value.param == f"chat_template_kwargs.{name}"


# What a template cannot access


def find_escapes(environment: Any, sources: dict[str, str], folder: Path) -> set[str]:
    """Return the names of the templates that created their file."""
    for name, source in sources.items():
        try:
            text = source.replace("CANARY", str(folder / name))
            if environment is None:
                compile_template(text).render({"messages": TURNS})
            else:
                environment.from_string(text).render(messages=TURNS)
        except Exception:  # noqa: S112
            continue
    return {path.name for path in folder.iterdir()}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_cve_2024_34359_no_way_out_of_the_sandbox(tmp_path: Path) -> None:
    live, other = ESCAPES["live"], ESCAPES["other"]
    unsafe = jinja2.Environment()  # noqa: S701
    unsafe.globals["raise_exception"] = find_escapes
    unsafe.globals["strftime_now"] = make_reference_environment
    (tmp_path / "unsafe").mkdir()
    (tmp_path / "sandbox").mkdir()
    escapes = find_escapes(unsafe, live, tmp_path / "unsafe")
    assert escapes == live.keys(), "an escape does not work without a sandbox"
    assert find_escapes(None, live | other, tmp_path / "sandbox") == set()
    assert len(live | other) >= 12


def test_cve_2026_5760_one_module_creates_environments() -> None:
    makers = {"Environment", "Template", "SandboxedEnvironment", "NativeEnvironment", "from_string"}
    makers |= {"ImmutableSandboxedEnvironment", "TemplateSandbox", "ChatTemplate"}
    calls = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in makers:
                    calls.append((path.name, name))
    assert sorted(calls) == [
        ("template.py", "ChatTemplate"),
        ("template.py", "TemplateSandbox"),
        ("template.py", "from_string"),
    ]


# What a template may cost

RUNNER = """
import json, resource, sys, time, tomllib
from dragoman.errors import DragomanError
from dragoman.prompt.renderer import PromptRenderer
from dragoman.prompt.template.template import compile_template

compile_template("{{ 1 }}").render({})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
results = {}
for name, source in tomllib.loads(open(sys.argv[1]).read()).items():
    started = time.process_time()
    try:
        compile_template(source).render({"messages": []})
        message = "rendered"
    except DragomanError as error:
        message = error.message
    results[name] = [message, time.process_time() - started]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps({"results": results, "megabytes": peak / 1024}))
"""


@measures_time
def test_cve_2026_115911_bombs_are_stopped_in_a_second_and_256_megabytes() -> None:
    run = subprocess.run(
        [sys.executable, "-c", RUNNER, str(DATA / "bombs.toml")],
        capture_output=True,
        timeout=200,
        check=True,
    )
    report = json.loads(run.stdout)
    assert report["megabytes"] <= 256
    assert report["results"].keys() == BOMBS.keys()
    assert len(BOMBS) >= 20
    for name, (message, seconds) in report["results"].items():
        assert "The model's chat template" in message, name
        assert seconds <= 1, name


@pytest.mark.parametrize(
    ("limits", "source", "message"),
    [
        (RenderLimits(steps=1000), "{% for i in range(9999) %}{% endfor %}", "too many steps"),
        (RenderLimits(seconds=0), "{% for i in range(9999) %}{% endfor %}", "too long"),
        (RenderLimits(min_text=10), "{{ 'a' * 11 }}", "text that is too long"),
        (RenderLimits(min_text=10), "aaaaaaaaaaa", "prompt that is too long"),
        (
            RenderLimits(memory=500),
            "{% for i in range(99) %}{% set x = [i] %}{% endfor %}",
            "memory",
        ),
    ],
)
def test_each_limit_holds(limits: RenderLimits, source: str, message: str) -> None:
    with pytest.raises(TemplateRejected) as caught:
        compile_template(source).render({}, RenderBudget(limits))
    assert message in caught.value.message
    assert caught.value.code == "template_too_costly"


def test_limits_grow_with_the_request() -> None:
    content = "x" * 3_000_000
    source = "{% for m in messages %}{{ m.content|trim + '.' }}{{ m.content.upper() }}{% endfor %}"
    messages = [{"role": "user", "content": content}]
    text = compile_template(source).render({"messages": messages}, RenderBudget(size=len(content)))
    assert text == content + "." + content.upper()


def test_many_threads_may_compile_one_template_at_once() -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %} compiled at once"
    start = threading.Barrier(8)

    def compile_and_render(number: int) -> str:
        start.wait(10)
        return PromptRenderer(source, None).template_source or str(number)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(compile_and_render, range(8))) == {source}
