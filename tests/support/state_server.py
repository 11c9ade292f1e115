"""A server with a scripted engine and a persistent store, in a process of its own.

    python -m tests.support.state_server STORE

Prints its URL once it listens. `ServerProcess` starts one, and can kill it.
"""

from __future__ import annotations

import os
import subprocess
import sys

from openai import OpenAI

from dragoman.http import server
from dragoman.http.server import make_app
from dragoman.runtime import build_engine_runtime
from dragoman.testing import Reply, ScriptedEngine
from tests.support.paths import ROOT

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = " ".join(f"word{number}" for number in range(40))
SCRIPT = [
    Reply("Done at once.", when="quick"),
    Reply(WORDS, when="slow", pace=0.02),
    Reply("One, two", when="hang", hang_at=2),
    Reply("Hello there!"),
]


class ServerProcess:
    """A server in a process of its own."""

    def __init__(self, store: str, keys: tuple[str, ...] = ()) -> None:
        command = [sys.executable, "-m", "tests.support.state_server", store, *keys]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=dict(os.environ)
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, "the server did not start"
        self.client = OpenAI(base_url=f"{self.url}/v1", api_key="x", max_retries=0, timeout=30)

    def kill(self) -> None:
        """End it without a chance to clean up."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def stop(self) -> int:
        self.process.terminate()
        code = self.process.wait(60)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.kill()


def main(store: str, *keys: str) -> None:
    engine = ScriptedEngine(SCRIPT, tokens=True)
    options = {"name": "scripted", "port": 0, "chat_template": TEMPLATE, "store": store}
    app = make_app(
        build_engine_runtime(engine, options | {"api_key": keys, "drain": 1.0}), local=True
    )
    running = server.make_server(app, app.settings, lambda url: print(url, flush=True))
    server.run_event_loop(running.serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
