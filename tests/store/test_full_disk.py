"""Deleting on a full disk: a file system of a few megabytes, in a name space of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.name_spaces import can_unshare, run_unshared

pytestmark = pytest.mark.slow
SCRIPT = """
import asyncio, sys, pytest
from pathlib import Path
from dragoman.errors import StoreUnavailable
from dragoman.files.upload import delete_file
from tests.support.stores import *
async def main(folder):
    store = await open_store(f"sqlite:///{folder}/store.db")
    await add_conversation(store, make_conversation("c"), make_items("a"))
    await add_file(store, make_file("f"), [b"x" * 250_000] * 20)
    count = 0
    with pytest.raises(StoreUnavailable, match="no space left"):
        while True:
            await add_response(store, make_response(f"r{count}", body=b"x" * 300_000))
            count += 1
    with pytest.raises(OSError):  # others use up what is left
        Path(folder, "filler").write_bytes(b"x" * (64 << 20))
    assert count > 10
    assert not await store.delete(lambda tx: tx.delete_response("bob", "r0"))
    assert await delete_file(store, "ann", "f")
    for number in range(count):
        assert await store.delete(lambda tx: tx.delete_response("ann", f"r{number}")), number
    assert await store.delete(lambda tx: tx.delete_conversation("ann", "c"))
    Path(folder, "filler").unlink()
    await store.sweep()
    assert Path(folder, "store.db-reserve").exists()
    await add_response(store, make_response("after", body=b"x" * 300_000))
    await store.aclose()
    print("deleted", count)
asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.skipif(not can_unshare("mount"), reason="needs a name space to mount a file system in")
def test_rows_can_be_deleted_on_a_full_disk(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=24m tmpfs "$1" && exec "$2" -c "$3" "$1"'
    command = ("sh", "-c", mount, "sh", str(tmp_path), sys.executable, SCRIPT)
    result = run_unshared("mount", *command)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("deleted")
