"""The shape of the code base: who imports whom, how large things may grow, what is never used."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "dragoman"
FILES = sorted(SOURCE.rglob("*.py"))

LINES, FUNCTION, ARGUMENTS, NESTING = 400, 60, 6, 4

NOUNS = {"types", "events", "errors", "_version"}
# what each room may import besides the nouns and itself
ALLOWED: dict[str, set[str]] = {
    "types": set(),
    "events": set(),
    "errors": set(),
    "config": set(),
    "admission": set(),
    "detokenize": set(),
    "gguf": set(),
    "journal": set(),
    "parse": set(),
    "formats": {"parse"},
    "output": {"formats", "parse"},
    "constraint": {"formats", "output", "parse"},
    "tally": set(),
    "reader": {"detokenize", "output", "parse", "tally"},
    "tokens": {"gguf"},
    "engines": {"gguf", "tokens"},
    "fanin": {"engines"},
    "prompt": {"tokens"},
    "detection": {"formats", "output", "parse", "prompt"},
    "models": {"admission", "engines", "gguf", "prompt", "tokens"}
    | {"constraint", "detection", "formats", "output", "parse"},
    "thinking": {"fanin", "models", "reader"},
    "ordering": {"constraint", "models"},
    "wishes": {"models"},
    "pipeline": {"admission", "detokenize", "fanin", "models", "reader", "thinking"}
    | {"constraint", "memory", "ordering", "prompt", "ranking", "refusing", "wishes"},
    "ranking": set(),
    "refusing": {"models"},
    "embedding": {"models", "refusing"},
    "protocols": set(),
    "seal": set(),
    "store": set(),
    "tools": set(),
    "memory": {"models", "prompt", "store"},
    "turns": {"memory", "models", "pipeline", "protocols", "seal", "store", "tools"},
    "http": {"config", "constraint", "embedding", "models", "pipeline", "protocols", "tokens"}
    | {"memory", "seal", "store", "tools", "turns"},
    "assembly": {"config", "engines", "http", "models"}
    | {"memory", "seal", "store", "tools", "turns"},
    "terminal": {"models", "pipeline"},
    "explain": {"assembly", "config", "detection", "formats", "gguf", "models", "output", "parse"},
    "cli": {"assembly", "config", "explain", "journal", "models", "terminal"},
    "testing": {"engines", "output", "parse", "tokens"},
    "__init__": {"assembly", "detection", "http", "output"},
    "__main__": {"cli"},
    "_version": set(),
}
HEAVY = {
    "mcp",
    "psycopg",
    "xllamacpp",
    "torch",
    "vllm",
    "transformers",
    "huggingface_hub",
    "numpy",
    "llguidance",
}


def room(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[str]:
    """Rooms of ours that a module imports, wherever in it; annotations-only imports apart."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            parts = node.module.split(".")
            if parts[0] == "dragoman":
                yield from [parts[1]] if parts[1:] else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "dragoman" and parts[1:]:
                    yield parts[1]


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    own = room(path)
    assert set(imports(parse(path))) - NOUNS - {own} <= ALLOWED[own]


def test_the_nouns_import_nothing_of_ours() -> None:
    for name in ("types", "events", "errors"):
        assert not set(imports(parse(SOURCE / f"{name}.py")))


def nesting(node: ast.AST, depth: int = 0) -> int:
    """How deep blocks stand in blocks; an `elif` is no deeper than its `if`."""
    blocks = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        chained = isinstance(node, ast.If) and isinstance(child, ast.If) and child in node.orelse
        deeper = isinstance(child, blocks) and not chained
        deepest = max(deepest, nesting(child, depth + deeper))
    return deepest


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_grows_too_large(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LINES
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            named = [arg for arg in node.args.args if arg.arg not in ("self", "cls")]
            arguments = len(named) + len(node.args.kwonlyargs) + len(node.args.posonlyargs)
            assert size <= FUNCTION, f"{node.name} has {size} lines"
            assert arguments <= ARGUMENTS, f"{node.name} takes {arguments} arguments"
            assert nesting(node) <= NESTING, f"{node.name} is nested too deep"


def test_stream_and_whole_part_in_one_place() -> None:
    branches = [
        (path.name, node.lineno)
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.If | ast.IfExp)
        and ast.unparse(node.test).endswith(("request.stream", ".streamed"))
    ]
    assert len(branches) == 1


def test_importing_the_package_imports_no_engine() -> None:
    code = (
        "import sys, dragoman, dragoman.cli, dragoman.assembly, dragoman.terminal\n"
        "import dragoman.testing\n"
        f"print(sorted(set({sorted(HEAVY)!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


BANNED = {"eval", "exec", "compile", "__import__", "pickle", "marshal", "dill", "yaml.load"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_that_runs_data_as_code(path: Path) -> None:
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            assert not BANNED & set(names)
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in BANNED, f"line {node.lineno}"
            shell = [word for word in node.keywords if word.arg == "shell"]
            assert not shell, f"line {node.lineno}"


def test_templates_are_compiled_in_one_place() -> None:
    makers = {
        path.name
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jinja2")
    }
    assert makers <= {"template.py", "coder.py", "filters.py", "budget.py"}


def test_only_config_reads_the_environment() -> None:
    readers = {
        path.name
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.environ", "os.getenv")
    }
    assert readers <= {"config.py"}


def test_constraints_pin_exactly_and_name_no_registry() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert all("==" in line and "://" not in line and not line.startswith("-") for line in pins)


def test_ci_runs_the_tests_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines[-1] == "make test"
    assert all(line.startswith(("#", "set ", "cd ", "make test")) for line in lines)
