"""Guards on the shape of the code base: import direction, size, names, and what is never used."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SOURCE = ROOT / "src" / "dragoman"
FILES = sorted(SOURCE.rglob("*.py"))

MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_ARGUMENTS, MAX_NESTING = 400, 60, 6, 4
MAX_MODULES = 15  # per package, sub-packages apart
MAX_ANY_LINES = 81  # lines annotated with `Any`
MAX_PARTICIPLES = 0.02  # share of functions named by a bare participle

ROOT_MODULES = {
    "__init__",
    "__main__",
    "_version",
    "events",
    "errors",
}
ROOT_MODULES |= {"signing"}
DATA_TYPES = {"types", "events", "errors", "options", "_version"}
# the packages each package may import, besides the data types and itself
ALLOWED: dict[str, set[str]] = {
    "types": set(),
    "events": set(),
    "errors": set(),
    "_version": set(),
    "options": set(),
    "config": {"engines", "presets"},
    "signing": set(),
    "keys": {"config"},
    "processes": set(),
    "protocols": set(),
    "presets": {"engines", "protocols"},
    "store": set(),
    "files": {"store"},
    "batches": {"files", "protocols", "store"},
    "telemetry": set(),
    "mcp": {"telemetry"},
    "media": {"mcp", "processes"},
    "tokenizers": set(),
    "output": set(),
    "formats": {"output"},
    "engines": {"processes", "tokenizers"},
    "grammar": {"formats", "output", "processes"},
    "prompt": {"tokenizers"},
    "detection": {"formats", "output", "prompt"},
    "new_format": {"detection", "formats", "output", "testing"},
    "models": {"detection", "engines", "formats", "grammar", "output", "presets", "prompt"}
    | {"tokenizers"},
    "replay": {"models", "prompt", "store"},
    "pipeline": {"telemetry", "engines", "grammar", "models", "output", "presets", "prompt"}
    | {"keys", "media", "replay"},
    "responses": {
        "telemetry",
        "mcp",
        "models",
        "pipeline",
        "protocols",
        "replay",
        "signing",
        "store",
    },
    "runtime": {"telemetry", "config", "engines", "grammar", "mcp", "models", "pipeline", "replay"}
    | {"keys", "media", "presets"}
    | {"responses", "signing", "store", "files"},
    "http": {
        "telemetry",
        "batches",
        "config",
        "files",
        "grammar",
        "models",
        "pipeline",
        "protocols",
        "replay",
        "responses",
    }
    | {"keys", "runtime", "signing", "store", "tokenizers"},
    "explain": {"config", "detection", "engines", "formats", "models", "output", "runtime"},
    "cli": {"telemetry", "config", "explain", "http", "keys", "models", "pipeline", "runtime"}
    | {"new_format"},
    "testing": {"engines", "formats", "output", "tokenizers"},
    "__init__": {"cli", "detection", "http", "output", "runtime", "types"},
    "__main__": {"cli"},
}
# single modules that may import more than their package
EXCEPTIONS: dict[str, set[str]] = {
    "output/library.py": {"formats"},  # the public parser takes formats by name
}
HEAVY = {"mcp", "psycopg", "xllamacpp", "torch", "vllm", "transformers"}
HEAVY |= {"huggingface_hub", "numpy", "llguidance", "PIL", "soundfile", "pypdf"}

# fmt: off
IRREGULAR_PARTICIPLES = {
    "said", "told", "found", "made", "kept", "given", "begun", "heard", "held", "known", "left",
    "lost", "meant", "met", "sent", "shown", "spoken", "taken", "thought", "understood",
    "written", "borne", "bound", "brought", "built", "bought", "caught", "chosen", "done",
    "drawn", "driven", "fallen", "felt", "gone", "grown", "hidden", "laid", "led", "shut",
    "spent", "stood", "taught", "worn", "won",
}
# fmt: on
NOT_PARTICIPLES = {"seed", "feed", "speed", "need", "embed", "shed", "exceed", "proceed", "hundred"}
NOT_PARTICIPLES |= {"thread", "head", "spread", "ahead", "instead"}
# metaphors and odd words that readers stumbled over; design.md has the words to use
# fmt: off
ODD_WORDS = {
    "said", "told", "heard", "thoughts", "wishes", "granted", "desk", "shelf", "trail", "voice",
    "hearing", "speech", "workshop", "crew", "flight", "seal", "tally", "whoever",
}
# fmt: on
# classes that share a name on purpose
SHARED_CLASS_NAMES: set[str] = set()


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def list_nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(parse(path)))


@pytest.fixture(scope="module", autouse=True)
def _forget_trees() -> Iterator[None]:
    """Drop millions of objects, which would slow down every later garbage collection."""
    yield
    list_nodes.cache_clear()
    parse.cache_clear()


def find_imports(path: Path) -> Iterator[str]:
    """Packages of ours that a module imports, anywhere in it."""
    for node in list_nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            parts = node.module.split(".")
            if parts[0] == "dragoman":
                yield from [parts[1]] if parts[1:] else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "dragoman" and parts[1:]:
                    yield parts[1]


def test_imports_go_one_way() -> None:
    forbidden = {}
    for path in FILES:
        package = package_of(path)
        allowed = ALLOWED[package] | EXCEPTIONS.get(name_of(path), set())
        imports = set(find_imports(path)) - DATA_TYPES - {package}
        if not imports <= allowed:
            forbidden[name_of(path)] = imports - allowed
    assert not forbidden


def test_import_directions_have_no_cycle() -> None:
    def reachable(package: str) -> set[str]:
        seen: set[str] = set()
        queue = [package]
        while queue:
            for other in ALLOWED[queue.pop()] - seen:
                seen.add(other)
                queue.append(other)
        return seen

    assert not [package for package in ALLOWED if package in reachable(package)]


@pytest.mark.parametrize("name", ["types", "events", "errors"])
def test_data_types_import_nothing_of_ours(name: str) -> None:
    files = [path for path in FILES if package_of(path) == name]
    imports = {other for path in files for other in find_imports(path)}
    assert files
    assert imports <= {name}


def test_no_loose_module_at_the_root() -> None:
    assert {path.stem for path in SOURCE.glob("*.py")} == ROOT_MODULES


def test_no_package_has_too_many_modules() -> None:
    modules = Counter(path.parent for path in FILES if path.name != "__init__.py")
    del modules[SOURCE / "formats"]  # one data file per format
    crowded = {str(folder): count for folder, count in modules.items() if count > MAX_MODULES}
    assert not crowded


@pytest.mark.parametrize("package", ["cli", "http/routes", "media", "store"])
def test_there_is_room_for_what_newcomers_add(package: str) -> None:
    """CONTRIBUTING.md tells them to add a file to these packages."""
    modules = [path for path in (SOURCE / package).glob("*.py") if path.name != "__init__.py"]
    assert len(modules) < MAX_MODULES


def test_every_package_says_what_it_is() -> None:
    silent = [
        name_of(path)
        for path in FILES
        if path.name == "__init__.py" and ast.get_docstring(parse(path)) is None
    ]
    assert not silent


MODULE_LINE = re.compile(r" *([a-z][a-z0-9_]*(?:, [a-z][a-z0-9_]*)*)/?(?: {2,}\S.*)?")


def list_modules(docstring: str, modules: set[str]) -> set[str]:
    """Return the modules that lines of a package's docstring describe."""
    listed: set[str] = set()
    for line in docstring.splitlines():
        match = MODULE_LINE.fullmatch(line)
        names = set(match[1].split(", ")) if match else set()
        listed |= names if names <= modules else set()
    return listed


PACKAGES = [path for path in FILES if path.name == "__init__.py"]


@pytest.mark.parametrize("path", PACKAGES, ids=name_of)
def test_a_list_of_modules_is_complete(path: Path) -> None:
    """A package that lists its modules lists all of them, or names them in the text."""
    modules = {other.stem for other in path.parent.glob("*.py")} - {"__init__"}
    modules |= {other.parent.name for other in path.parent.glob("*/__init__.py")}
    docstring = ast.get_docstring(parse(path)) or ""
    listed = list_modules(docstring, modules)
    named = set(re.findall(r"`([a-z0-9_]+)", docstring))
    assert len(listed) < 2 or modules <= listed | named


def nesting(node: ast.AST, depth: int = 0) -> int:
    """The depth of nested blocks; an `elif` is no deeper than its `if`."""
    blocks = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        chained = isinstance(node, ast.If) and isinstance(child, ast.If) and child in node.orelse
        deeper = isinstance(child, blocks) and not chained
        deepest = max(deepest, nesting(child, depth + deeper))
    return deepest


def find_large_parts(path: Path) -> Iterator[str]:
    """Say what in a file is larger than its limit."""
    file = name_of(path)
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{file} has {lines} lines"
    for node in list_nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{file}:{node.lineno} {node.name}"
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            named = [arg for arg in node.args.args if arg.arg not in ("self", "cls")]
            arguments = len(named) + len(node.args.kwonlyargs) + len(node.args.posonlyargs)
            if size > MAX_FUNCTION_LINES:
                yield f"{name} has {size} lines"
            if arguments > MAX_ARGUMENTS:
                yield f"{name} takes {arguments} arguments"
            if nesting(node) > MAX_NESTING:
                yield f"{name} is nested too deep"


def test_nothing_grows_too_large() -> None:
    assert not [part for path in FILES for part in find_large_parts(path)]


def is_bare_participle(name: str) -> bool:
    name = name.strip("_")
    if "_" in name or name in NOT_PARTICIPLES:
        return False
    return name in IRREGULAR_PARTICIPLES or (len(name) > 4 and name.endswith("ed"))


def test_functions_are_verbs() -> None:
    names = [
        (node.name, name_of(path))
        for path in FILES
        for node in list_nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("__")
    ]
    participles = [pair for pair in names if is_bare_participle(pair[0])]
    assert len(participles) <= MAX_PARTICIPLES * len(names), participles


def test_a_class_name_exists_once() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        for node in list_nodes(path):
            if isinstance(node, ast.ClassDef):
                places[node.name.strip("_")].add(name_of(path))
    shared = {name: files for name, files in places.items() if len(files) > 1}
    assert set(shared) == SHARED_CLASS_NAMES, shared


def find_odd_words(path: Path) -> set[str]:
    """Words inside a format's own markers and examples are the model's, not ours."""
    if path.parent == SOURCE / "formats":
        text = ast.get_docstring(parse(path)) or ""
    else:
        text = path.read_text(encoding="utf-8")
    words = {word.lower() for word in re.findall(r"[A-Za-z]{3,}", text)}
    return words & ODD_WORDS


def test_no_odd_words() -> None:
    assert not [(name_of(path), words) for path in FILES if (words := find_odd_words(path))]


def test_any_is_rare() -> None:
    lines = 0
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        if "Any" not in text:
            continue
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        numbers = {
            token.start[0]
            for token in tokens
            if token.type == tokenize.NAME and token.string == "Any"
        }
        source = text.splitlines()
        lines += sum("import" not in source[number - 1] for number in numbers)
    assert lines <= MAX_ANY_LINES


def test_stream_or_whole_is_decided_in_one_place() -> None:
    disguises = ("request.stream", ".wants_stream", "push is None", "push is not None")
    branches = [
        (name_of(path), node.lineno)
        for path in FILES
        for node in list_nodes(path)
        if isinstance(node, ast.If | ast.IfExp) and ast.unparse(node.test).endswith(disguises)
    ]
    assert len(branches) == 1, branches


def test_importing_the_package_imports_no_engine() -> None:
    code = (
        "import sys, dragoman, dragoman.cli.main, dragoman.runtime, dragoman.testing\n"
        f"print(sorted(set({sorted(HEAVY)!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


BANNED = {"eval", "exec", "compile", "__import__", "pickle", "marshal", "dill", "yaml.load"}


def runs_code(node: ast.AST) -> bool:
    """Whether a node imports or calls what runs data as code, or starts a shell."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
        return not BANNED.isdisjoint(names)
    if isinstance(node, ast.Call):
        has_shell = any(word.arg == "shell" for word in node.keywords)
        return has_shell or ast.unparse(node.func) in BANNED
    return False


def test_no_data_is_run_as_code() -> None:
    places = [
        f"{name_of(path)}:{getattr(node, 'lineno', 0)}"
        for path in FILES
        for node in list_nodes(path)
        if runs_code(node)
    ]
    assert not places


def test_templates_are_compiled_in_one_package() -> None:
    makers = {
        package_of(path)
        for path in FILES
        for node in list_nodes(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jinja2")
    }
    assert makers == {"prompt"}


def test_only_config_reads_the_environment() -> None:
    readers = {
        package_of(path)
        for path in FILES
        for node in list_nodes(path)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.environ", "os.getenv")
    }
    assert readers == {"config"}


def test_constraints_pin_exactly_and_name_no_registry() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert all("==" in line and "://" not in line and not line.startswith("-") for line in pins)


def test_ci_runs_the_tests_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines[-1] == "make test"
    assert all(line.startswith(("#", "set ", "cd ", "make test")) for line in lines)
