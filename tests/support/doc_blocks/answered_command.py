"""Runs a server until it has answered a request: `python -m ...answered_command COMMAND ...`."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys

import httpx

from dragoman.cli.main import parse_arguments
from tests.support.server_process import read_until

ANSWER_SECONDS = 120


def main() -> None:
    """Run the command in the arguments until the server answers a request, then stop it."""
    command = sys.argv[1:]
    if "--port" in command:  # which may be in use
        command[command.index("--port") + 1] = "0"
    with subprocess.Popen(
        command,
        env=os.environ | {"DRAGOMAN_PORT": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            url = read_until(process, r"Listening on (\S+)").replace("0.0.0.0", "127.0.0.1")
            model = read_until(process, r"Serving (\S+)\.")
            print(request_answer(url, model, command[command.index("serve") :]))
        finally:
            process.terminate()
            process.communicate()


def request_answer(url: str, model: str, arguments: list[str]) -> str:
    """Request an answer of one token, as a client of a server with these arguments does."""
    settings = parse_arguments(arguments)
    headers = {}
    if settings.api_key:
        headers["authorization"] = f"Bearer {settings.api_key[0]}"
    if settings.allowed_host:
        headers["host"] = settings.allowed_host[0]
    response = httpx.post(
        f"{url}/v1/chat/completions",
        headers=headers,
        verify=ssl.create_default_context(cafile=settings.tls_cert),
        json={
            "model": model,
            "messages": [{"role": "user", "content": "Hello!"}],
            "max_tokens": 1,
        },
        timeout=ANSWER_SECONDS,
    )
    # the block says nothing about the keys in a file, so this client has none
    assert response.status_code == (401 if settings.api_key_file else 200), response.text
    return response.text


if __name__ == "__main__":
    main()
