"""No process outlives the process that started it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.serving import poll_until

PROGRAM = """
import subprocess, sys
from dragoman.processes.child import end_group_with_process
end_group_with_process()
helper = subprocess.Popen(["sleep", "60"])
print(helper.pid, flush=True)
if sys.argv[1] == "end":
    sys.exit(0)
helper.wait()
"""


@pytest.mark.parametrize("way", ["kill", "end"])
def test_children_end_with_their_process(way: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, way],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        helper = int(process.stdout.readline())
        if way == "kill":
            process.send_signal(signal.SIGKILL)
        process.wait(30)
        # the helper holds the pipe, so its end is the helper's end
        assert process.stdout.read() == ""
    poll_until(lambda: has_ended(helper))


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except OSError:
        return True
