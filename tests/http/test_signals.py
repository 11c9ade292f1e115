"""SIGHUP reloads, unless the terminal of the server was closed; a server of root says so."""

from __future__ import annotations

import os
import pty
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.certificates import Authority
from tests.support.server_process import read_until, run_engine_server

PROGRAM = """
import dragoman, dragoman.testing as t
dragoman.serve(t.ScriptedEngine("hi"), name="scripted", port=0)
"""


def test_sighup_reloads_the_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("server")
    options = f't.ScriptedEngine("hi"), port=0, tls_cert="{files.cert}", tls_key="{files.key}"'
    with run_engine_server(options) as server:
        for _ in range(2):
            os.kill(server.process.pid, signal.SIGHUP)
            read_until(server.process, "loaded the certificate")
        files.key.write_text("nothing")
        read_until(server.process, r"keeping the previous certificate: .* no PEM private key")
        verify = ssl.create_default_context(cafile=authority.file)
        assert httpx.get(f"{server.url}/health", verify=verify).status_code == 200


def test_closed_terminal_stops_the_server() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            os.close(theirs)
            url = read_until(process, r"Listening on (\S+)")
            os.kill(process.pid, signal.SIGHUP)  # the terminal is still there
            read_until(process, "Press Ctrl-C")
            assert httpx.get(f"{url}/health").status_code == 200
            os.close(ours)
            os.kill(process.pid, signal.SIGHUP)
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(("user", "warns"), [(0, True), (1000, False)])
def test_server_of_root_draws_a_warning(user: int, warns: bool, default_model: Path) -> None:
    program = f"import os; os.geteuid = lambda: {user}\nfrom dragoman.cli.main import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", program, "serve", str(default_model), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            lines = []  # the log is written by a thread of its own, so its place is not fixed
            for line in process.stdout:
                lines.append(line)
                if line.startswith("Serving "):
                    break
        finally:
            process.kill()
    assert any("runs as root" in line for line in lines) == warns
