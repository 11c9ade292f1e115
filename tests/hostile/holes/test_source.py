"""What the source must not contain, read from its syntax tree."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import dragoman
from dragoman.errors import ModelBroken
from dragoman.models.catalog import ModelCatalog
from dragoman.models.loaders.loader import choose_engine
from dragoman.models.mapping import ModelOptions
from tests.support.paths import ROOT
from tests.support.timing import measures_time

SOURCE = ROOT / "src" / "dragoman"
FILES = sorted(SOURCE.rglob("*.py"))
PINS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@cache
def find_calls() -> list[tuple[str, ast.Call, str]]:
    """Every call: its file, its node, and the name of what is called."""
    return [
        (name_of(path), node, name_callee(node.func))
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call)
    ]


def name_callee(node: ast.expr) -> str:
    """Return a dotted name; what is no name, such as the result of a call, becomes a dot."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{name_callee(node.value)}.{node.attr}"
    return ""


@cache
def find_imports() -> dict[str, set[str]]:
    """The files that import each module, with its parents."""
    files: dict[str, set[str]] = {}
    for path in FILES:
        for node in ast.walk(parse(path)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
            for name in names:
                for end in range(1, name.count(".") + 2):
                    prefix = ".".join(name.split(".")[:end])
                    files.setdefault(prefix, set()).add(name_of(path))
    return files


def find_importers(*modules: str) -> set[str]:
    return {file for module in modules for file in find_imports().get(module, set())}


def test_source_is_found() -> None:
    """The gates below would pass without it."""
    assert len(FILES) > 300
    assert find_importers("msgspec")
    assert any(name == "open" or name.endswith(".open") for _, _, name in find_calls())


ENVIRONMENTS = {"Environment", "Template", "SandboxedEnvironment", "NativeEnvironment"}
ENVIRONMENTS |= {
    "ImmutableSandboxedEnvironment",
    "NativeTemplate",
    "from_string",
    "TemplateSandbox",
}


def test_hole_2_one_module_compiles_templates() -> None:
    files = {file for file, _, name in find_calls() if name.rpartition(".")[2] in ENVIRONMENTS}
    assert files == {"prompt/template/template.py"}
    assert find_importers("jinja2") <= {
        f"prompt/template/{name}.py"
        for name in ("template", "filters", "go_filters", "budget", "capabilities", "jinja_codegen")
    } | {"detection/render_probe.py", "detection/reasoning_switch.py"} | find_importers(
        "jinja2.nodes", "jinja2.exceptions"
    )


CODE_CALLS = {"eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec"}
CODE_CALLS |= {"ast.literal_eval", "literal_eval", "runpy.run_path", "runpy.run_module"}


# reads literals of an example that the operator writes, for `dragoman new-format`
LITERALS = ("new_format/arguments.py", "ast.literal_eval")


def find_evaluations() -> list[tuple[str, str]]:
    found = [(file, name) for file, _, name in find_calls() if name in CODE_CALLS]
    return [call for call in found if call != LITERALS]


def test_hole_24_nothing_is_evaluated() -> None:
    assert not find_evaluations()


UNSAFE_LOADERS = {
    "torch.load",
    "numpy.load",
    "np.load",
    "joblib.load",
    "yaml.load",
    "yaml.unsafe_load",
}
UNSAFE_LOADERS |= {"yaml.full_load", "shelve.open", "pandas.read_pickle", "np.fromfile"}
UNSAFE_MODULES = [
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "joblib",
    "torch",
]
UNSAFE_MODULES += ["copyreg", "multiprocessing.managers", "multiprocessing.connection", "xmlrpc"]


def test_hole_57_no_bytes_are_loaded_as_objects() -> None:
    assert not find_importers(*UNSAFE_MODULES)
    assert not [(file, name) for file, _, name in find_calls() if name in UNSAFE_LOADERS]


def test_hole_84_processes_exchange_plain_data() -> None:
    """Child processes talk over inherited sockets in frames of msgspec; nothing is pickled."""
    assert not find_importers("multiprocessing", "zmq", *UNSAFE_MODULES)
    assert not find_evaluations()
    shells = [
        (file, name)
        for file, node, name in find_calls()
        if name in ("os.system", "os.popen", "asyncio.create_subprocess_shell")
        or any(keyword.arg == "shell" for keyword in node.keywords)
    ]
    assert not shells


# The files that may connect to other machines, and why.
FETCHERS = {
    "mcp/transport.py",  # remote tools: every URL passes the guard
    "mcp/session.py",
    "media/fetch.py",  # URLs of pictures, sound and files, from hosts that the operator allows
    "models/downloads/hub.py",  # `pull`, a command of the operator
    "models/downloads/resumable_hub.py",
    "models/upstream/probe_client.py",  # the operator's upstream server
    "cli/client/server_transport.py",  # commands that talk to the operator's own server
    "telemetry/spans.py",  # the operator's collector
}
CLIENTS = [
    "httpx",
    "httpx2",
    "requests",
    "aiohttp",
    "urllib.request",
    "urllib3",
    "http.client",
    "pycurl",
]
CLIENTS += ["ftplib", "smtplib", "huggingface_hub", "websockets.client", "websockets.sync.client"]
CLIENTS += ["websockets.asyncio.client", "mcp.client", "opentelemetry.exporter", "socks", "grpc"]


def test_hole_48_only_known_modules_connect_to_other_machines() -> None:
    assert find_importers(*CLIENTS) == FETCHERS
    connects = {
        file
        for file, node, name in find_calls()
        if name.rpartition(".")[2] in ("create_connection", "open_connection")
        and not any(keyword.arg == "sock" for keyword in node.keywords)
    }
    assert connects == {"engines/remote/http/client.py"}  # the operator's upstream server


def test_hole_63_keys_are_compared_as_digests() -> None:
    """No `==` with a key or a digest anywhere; what compares is `hmac.compare_digest`."""
    suspects = re.compile(r"\b\w*(api_key|digest|secret|signature|password)\w*\b")
    found = []
    for path in FILES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Compare) and any(
                isinstance(operator, ast.Eq | ast.NotEq) for operator in node.ops
            ):
                sides = [node.left, *node.comparators]
                names = [ast.unparse(side) for side in sides if not isinstance(side, ast.Constant)]
                if any(suspects.search(name) and "(" not in name for name in names):
                    found.append((name_of(path), ast.unparse(node)))
    assert not [pair for pair in found if pair not in KNOWN_COMPARISONS], found
    assert any(name == "hmac.compare_digest" for _, _, name in find_calls())


# Comparisons that no client can time: digests of content, which are no secrets.
KNOWN_COMPARISONS = {
    ("replay/service.py", "self._answer_digest == entry.answer_digest"),
    ("store/key_values.py", "secrets.c.name == name"),
}


MODEL_CODE = [
    "transformers",
    "vllm",
    "sglang",
    "torch",
    "PIL",
    "cv2",
    "imageio",
    "soundfile",
    "librosa",
]


VLLM = "engines/vllm/"  # runs in a process and an environment of its own
SAFE_VLLM = (0, 23, 1)  # the first that checks the sizes in GGUF files


def test_hole_89_vllm_gets_no_gguf_file_and_has_a_safe_version(tmp_path: Path) -> None:
    folder = Path(dragoman.__file__).parent / VLLM
    for file in ("cpu.txt", "cuda.txt"):
        [version] = re.findall(r"^vllm(?:-cpu)?==(.+)$", (folder / file).read_text(), re.MULTILINE)
        assert tuple(map(int, version.split("."))) >= SAFE_VLLM
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    source = ModelCatalog().open_path(model, ModelOptions(engine="vllm"))
    with pytest.raises(ModelBroken, match="The engine vllm runs directories of safetensors"):
        choose_engine(source)


# What decodes pictures, sound and PDF files runs in a worker process alone.
MEDIA_DECODERS = {f"media/decode_{kind}.py" for kind in ("image", "audio", "pdf")}
PNG_READERS = {"engines/vllm/multi_modal.py"}  # of files that the worker wrote, as an engine


def test_hole_55_only_the_worker_imports_decoders() -> None:
    assert find_importers("PIL", "soundfile", "pypdf") == MEDIA_DECODERS | PNG_READERS
    for file in PNG_READERS:
        source = (Path(dragoman.__file__).parent / file).read_text()
        assert source.count("Image.open(") == source.count('formats=("PNG",)') == 1
    decoders = {f"dragoman.{file[:-3].replace('/', '.')}" for file in MEDIA_DECODERS}
    assert find_importers(*decoders) == {"media/worker.py"}


def test_hole_90_no_code_of_a_model_is_imported() -> None:
    importers = find_importers(*MODEL_CODE) - MEDIA_DECODERS
    assert not {file for file in importers if not file.startswith(VLLM)}
    vllm_source = "".join(
        file.read_text() for file in (Path(dragoman.__file__).parent / VLLM).glob("*.py")
    )
    assert "trust_remote_code" not in vllm_source  # vLLM's own default is not to
    assert "transformers" not in PROJECT.partition("[project.optional-dependencies]")[0]
    dynamic = {
        file
        for file, _, name in find_calls()
        if name.rpartition(".")[2] in ("import_module", "spec_from_file_location", "load_module")
    }
    assert dynamic <= DYNAMIC_IMPORTS


DYNAMIC_IMPORTS = {
    "engines/__init__.py",  # an engine by name, from our own table or the operator's flag
    "cli/main.py",  # commands
    "cli/serving/serve_engine.py",  # `serve --engine module:attribute`, a flag
    "formats/__init__.py",
    "__init__.py",
    "processes/child.py",
    "engines/factory_import.py",  # an engine of one's own, `--engine module:function`
    "grammar/compiler/worker.py",  # the tokenizer that the server names
}


def test_hole_92_diskcache_is_not_a_dependency() -> None:
    assert not re.search(r"^(diskcache|joblib|cloudpickle|dill)\b", PINS, re.MULTILINE)
    assert "diskcache" not in PROJECT
    assert not find_importers("diskcache")


def test_hole_95_dependencies_are_pinned_and_come_from_one_index() -> None:
    pins = [line for line in PINS.splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.\[\]-]+==[\w.+!-]+( *;.*)?", line) for line in pins)
    for path in [
        ROOT / "Makefile",
        ROOT / "pyproject.toml",
        *ROOT.glob("deploy/*"),
        *ROOT.glob("docs/*.md"),
    ]:
        if path.is_file():
            assert "--extra-index-url" not in path.read_text(encoding="utf-8"), path
    wheel = PROJECT.partition("[tool.hatch.build.targets.wheel]")[2].partition("[tool")[0]
    assert wheel.strip() == 'packages = ["src/dragoman"]'
    assert not list(SOURCE.rglob("*.pth"))
    assert not (ROOT / "setup.py").exists()
    assert "hatch.build.hooks" not in PROJECT


# Regular expressions

SEEDS = ["a", "0", " ", "\n", "<", "{", "[", '"', "\\", '\\"', "aa "]
SIZE = 2_000  # characters
GROWTH = 4  # of the text; linear time grows as much, quadratic time by its square
MAX_GROWTH = 8
NOTICED = 0.02  # seconds of CPU time; less cannot be compared
METHODS = {"search", "match", "fullmatch", "sub", "findall", "finditer", "split"}
# Patterns for texts of the operator alone.
OPERATORS_TEXT = {"dragoman.options.units.DURATION_PART"}


@cache
def find_patterns() -> dict[str, tuple[re.Pattern[str], frozenset[str]]]:
    """All patterns at the top level of the package's modules, and the methods used there."""
    patterns = {}
    for module in pkgutil.walk_packages(dragoman.__path__, "dragoman."):
        if module.name.endswith("__main__") or module.name.startswith("dragoman.testing"):
            continue
        imported = importlib.import_module(module.name)
        tree = parse(Path(str(imported.__file__)))
        for name, value in vars(imported).items():
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                used = {
                    node.attr
                    for node in ast.walk(tree)
                    if isinstance(node, ast.Attribute)
                    and isinstance(node.value, ast.Name)
                    and node.value.id == name
                }
                patterns[f"{module.name}.{name}"] = value, frozenset(used & METHODS)
    return patterns


def make_attacks(pattern: str) -> Iterator[tuple[str, str]]:
    """Beginnings and pieces: a backtracking matcher may need long if the piece is repeated."""
    literals = re.findall(r"[A-Za-z0-9<>|_:\" -]{1,12}", re.sub(r"\\[a-zA-Z]", "", pattern))
    prefix = literals[0] if literals else ""
    for seed in [*SEEDS, *dict.fromkeys(literals[:4])]:
        yield prefix, seed


def repeat_piece(attack: tuple[str, str], size: int) -> str:
    """Return a text of a beginning, a piece that is repeated, and a mismatch."""
    prefix, piece = attack
    return prefix + piece * (size // len(piece)) + "\0"


def measure(pattern: re.Pattern[str], methods: frozenset[str], text: str) -> float:
    started = time.thread_time()
    for method in methods:
        if method == "sub":
            pattern.sub("", text)
        elif method == "finditer":
            list(pattern.finditer(text))
        else:
            getattr(pattern, method)(text)
    return time.thread_time() - started


def is_slow(pattern: re.Pattern[str], methods: frozenset[str], attack: tuple[str, str]) -> bool:
    """Whether the time grows faster than the text, each time that it is measured."""

    def grows() -> bool:
        long = measure(pattern, methods, repeat_piece(attack, GROWTH * SIZE))
        return long > NOTICED and long > MAX_GROWTH * measure(
            pattern, methods, repeat_piece(attack, SIZE)
        )

    return all(grows() for _ in range(3))


@measures_time
def test_hole_22_every_pattern_takes_linear_time(count_cases: Callable[[int], None]) -> None:
    patterns = find_patterns()
    assert len(patterns) > 60
    slow, count = [], 0
    for name, (pattern, methods) in patterns.items():
        for attack in () if name in OPERATORS_TEXT else make_attacks(pattern.pattern):
            count += 1
            if is_slow(pattern, methods, attack):
                slow.append((name, attack))
                break
    assert not slow
    count_cases(count)


def test_hole_22_the_test_finds_slow_patterns() -> None:
    """A number as it was once matched, with two ways to read every digit."""
    pattern = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")
    assert is_slow(pattern, frozenset({"fullmatch"}), ("", "0"))


@pytest.mark.parametrize("word", ["pickle", "eval", "yaml.load", "shell=True"])
def test_gates_recognise_what_they_look_for(word: str) -> None:
    """Each gate must be able to fail."""
    tree = ast.parse("import pickle\neval('1')\nyaml.load('')\nsubprocess.run('', shell=True)\n")
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert {"eval", "yaml.load"} <= calls
    assert word in ast.unparse(tree)
