"""Recipes, Modelfiles, blobs and digests of managed models."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.errors import BadRequest, TooLarge, Unavailable
from dragoman.models.catalog import ModelCatalog
from dragoman.models.downloads.hub import choose_file, pull_from_hub, translate_hub_name
from dragoman.models.management.blobs import MAX_PART_AGE, MAX_UNUSED_AGE, BlobStore
from dragoman.models.management.model_name import add_tag, check_new_name, strip_default_parts
from dragoman.models.management.modelfile import parse_modelfile
from dragoman.models.management.recipe import Recipe
from dragoman.models.management.service import ModelManager
from tests.support.model_files import write_model_file

MODELFILE = '''
# a comment
from base
SYSTEM """You answer
in rhymes."""
PARAMETER temperature 0.2
parameter stop "END"
PARAMETER stop <|x|>
MESSAGE user Hello there
MESSAGE assistant """Hi
you"""
LICENSE "MIT"
ADAPTER ./a.gguf
TEMPLATE "{{ messages }}"
'''


@pytest.fixture
def manager(tmp_path: Path) -> ModelManager:
    root = tmp_path / "models"
    write_model_file(root / "base.gguf")
    catalog = ModelCatalog(root, root / "models.yaml")
    catalog.refresh()
    return ModelManager(catalog)


def test_modelfile_is_read_like_ollama_reads_it() -> None:
    parsed = parse_modelfile(MODELFILE)
    assert parsed.source == "base"
    assert parsed.system == "You answer\nin rhymes."
    assert parsed.parameters == {"temperature": 0.2, "stop": ["END", "<|x|>"]}
    assert [(item.role, item.content) for item in parsed.messages] == [
        ("user", "Hello there"),
        ("assistant", "Hi\nyou"),
    ]
    assert (parsed.license, parsed.adapters) == (["MIT"], ["./a.gguf"])
    assert parsed.template == "{{ messages }}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("FORM base", r"line 1: there is no instruction FORM\. Did you mean FROM\?"),
        ("FROM base\nPARAMETR top_k 1", r"line 2: .* Did you mean PARAMETER\?"),
        ("FROM", r"line 1: FROM needs a value\."),
        ("SYSTEM x", "FROM"),
        ("FROM a\nWISH b", "line 2"),
        ('FROM a\nSYSTEM """b', "closing"),
        ("FROM a\nMESSAGE tool x", "role"),
        ("FROM a\nPARAMETER x", "name and a value"),
        ("FROM a\n" + "#" * (1 << 20), "longer"),
    ],
)
def test_mistake_in_a_modelfile_is_named(text: str, problem: str) -> None:
    with pytest.raises(BadRequest, match=problem):
        parse_modelfile(text)


@pytest.mark.parametrize(
    ("name", "stored", "listed"),
    [
        ("a", "a", "a:latest"),
        ("a:latest", "a", "a:latest"),
        ("a:7b", "a:7b", "a:7b"),
        ("me/a", "me/a", "me/a:latest"),
        ("host.example:5000/me/a:x", "host.example:5000/me/a:x", "host.example:5000/me/a:x"),
        ("registry.ollama.ai/library/a:latest", "a", "a:latest"),
    ],
)
def test_names_have_one_spelling(name: str, stored: str, listed: str) -> None:
    assert check_new_name(name, "model") == strip_default_parts(name) == stored
    assert add_tag(stored) == listed


def test_names_of_hugging_face_find_downloads(tmp_path: Path) -> None:
    for file in ("m-Q4_K_M", "m-Q8_0"):
        write_model_file(tmp_path / "Owner--m-GGUF" / f"{file}.gguf")
    write_model_file(tmp_path / "Owner--single" / "other.gguf")
    catalog = ModelCatalog(tmp_path)
    catalog.refresh()
    for name, expected in {
        "hf.co/Owner/m-GGUF:Q8_0": "m-Q8_0",
        "hf:Owner/m-GGUF/m-Q4_K_M.gguf": "m-Q4_K_M",
        "huggingface.co/owner/single": "other",
        "hf.co/owner/single:latest": "other",
        "hf.co/Owner/m-GGUF:Q2": None,
        "hf.co/Owner/../secret": None,
    }.items():
        found = catalog.find(name)
        assert (None if found is None else found.id) == expected, name


@pytest.mark.parametrize(
    ("name", "pulled"),
    [
        ("hf.co/a/b", "hf:a/b"),
        ("https://huggingface.co/a/b:latest", "hf:a/b"),
        ("hf.co/a/b:Q4_K_M", "hf:a/b:Q4_K_M"),
        ("https://huggingface.co/a/b/", "hf:a/b"),
        ("https://huggingface.co/a/b/tree/main", "hf:a/b"),
        ("https://huggingface.co/a/b/resolve/main/x.gguf?download=true", "hf:a/b/x.gguf"),
        ("https://huggingface.co/a/b/blob/v2/sub/x.gguf", "hf:a/b@v2/sub/x.gguf"),
        ("a/b", "a/b"),
    ],
)
def test_names_of_ollama_are_translated(name: str, pulled: str) -> None:
    assert translate_hub_name(name) == pulled


def test_tag_chooses_a_file() -> None:
    files = ["m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf"]
    assert choose_file(files, "q2_k") == "m-Q2_K.gguf"


class FakeHub:
    """Downloads ten chunks, and keeps what arrived."""

    def __init__(self) -> None:
        self.chunks = 0

    def model_info(self, repo: str, **_: Any) -> Any:
        lfs = SimpleNamespace(sha256="ab" * 32)
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename="m.gguf", size=1000, lfs=lfs)])

    def hf_hub_download(
        self,
        repo: str,
        filename: str,
        *,
        revision: str | None = None,
        local_dir: str,
        tqdm_class: Any = None,
    ) -> str:
        bar = tqdm_class(total=1000, initial=100 * self.chunks, desc=filename)
        with bar:
            while self.chunks < 10:
                self.chunks += 1
                bar.update(100)
        return str(write_model_file(Path(local_dir) / filename))

    def snapshot_download(self, repo: str, **_: Any) -> str:
        raise NotImplementedError


class Listener:
    """Remembers what a download reports, and ends it at a fraction."""

    def __init__(self, limit: float = 2.0) -> None:
        self.limit = limit
        self.files: list[tuple[str, int]] = []
        self.fractions: list[float] = []

    def start_file(self, digest: str, size: int) -> None:
        self.files.append((digest, size))

    def report(self, stage: str, fraction: float) -> None:
        self.fractions.append(fraction)
        if fraction >= self.limit:
            raise Unavailable("The download was cancelled.")


def test_download_reports_its_progress_and_is_continued(tmp_path: Path) -> None:
    hub, first, second = FakeHub(), Listener(limit=0.3), Listener()
    with pytest.raises(Unavailable, match="cancelled"):
        pull_from_hub("hf:a/b", tmp_path, hub, first)
    pull_from_hub("hf:a/b", tmp_path, hub, second)
    assert first.files == second.files == [("ab" * 32, 1000)]
    assert first.fractions == [0.1, 0.2, 0.3]
    assert second.fractions == [0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


def test_blobs_are_bounded_and_cleaned_up(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs", max_size=10)
    kept, old = store.add(b"kept"), store.add(b"old")
    abandoned = store.directory / ".part-abandoned"
    abandoned.write_bytes(b"x")
    past = time.time() - max(MAX_PART_AGE, MAX_UNUSED_AGE) - 10
    for path in (kept, old, abandoned):
        os.utime(path, (past, past))
    new = store.add(b"new")
    store.remove_unused({os.path.realpath(kept)})
    assert sorted(store.directory.iterdir()) == sorted([kept, new])
    writer = store.open_writer("0" * 64)
    with pytest.raises(TooLarge):
        writer.write(b"x" * 11)
    writer.discard()
    writer.discard()
    with pytest.raises(TooLarge):
        store.open_writer("0" * 64, size=11)
    outside = tmp_path / "outside"
    outside.write_bytes(b"x")
    store.remove(outside)
    assert outside.exists()
    assert sorted(store.directory.iterdir()) == sorted([kept, new])


def test_digest_follows_files_and_options(manager: ModelManager) -> None:
    [base] = manager.catalog.list_sources()
    first = manager.digests.compute(base)
    manager.copy("base", "same")
    manager.create(Recipe(name="other", source="base", system="x"))
    by_name = {
        name: manager.digests.compute(source)
        for source in manager.catalog.list_sources()
        for name in manager.catalog.list_main_names(source)
    }
    assert by_name["base"] == by_name["same"] == first != by_name["other"]
    write_model_file(base.path, size=2)
    manager.catalog.refresh()
    assert manager.digests.compute(manager.require("base")) != first


def test_models_yaml_of_the_operator_keeps_its_comments(manager: ModelManager) -> None:
    manager.mapping.write_text("# mine\nown: base.gguf  # comment\nlast: {path: base.gguf}\n")
    manager.create(Recipe(name="made", source="own", system="x"))
    manager.create(Recipe(name="made", source="own", system="y: \u0085 \ufeff\u2028 'q' \"d\""))
    manager.delete("last")
    text = manager.mapping.read_text()
    assert text.startswith("# mine\nown: base.gguf  # comment\n")
    assert "last" not in text
    assert manager.require("made").options.system == "y: \u0085 \ufeff\u2028 'q' \"d\""


def test_processes_change_models_one_after_the_other(manager: ModelManager) -> None:
    others = [ModelManager(ModelCatalog(manager.root, manager.mapping)) for _ in range(4)]

    def change(number: int) -> None:
        for step in range(5):
            others[number].copy("base", f"copy-{number}-{step}")

    threads = [threading.Thread(target=change, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    manager.catalog.refresh()
    assert len(manager.mapping.read_text().splitlines()) == 20
    assert hashlib.sha256(manager.mapping.read_bytes()).digest()
    assert manager.require("copy-3-4").id
