"""The steps of the Dockerfile build an image that serves, in a fresh root (`make test-deploy`)."""

from __future__ import annotations

import base64
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.deploy.dockerfile import ImageConfig, parse_dockerfile
from tests.deploy.fresh_root import FreshRoot, make_base, run_container
from tests.support.media_files import make_pdf
from tests.support.paths import ROOT

CACHE = ROOT / ".deploy"
SUITE = "trixie"  # as in the name of the base image
KEY = "a-key-for-the-test"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FreshRoot, ImageConfig]]:
    """Run the Dockerfile's steps on a copy of the files that the build context has."""
    stages = parse_dockerfile(ROOT / "deploy" / "Dockerfile")
    assert {stage.base for stage in stages} == {f"python:3.13-slim-{SUITE}"}
    base = make_base(CACHE, SUITE)
    folder = tmp_path_factory.mktemp("image")
    context = copy_context(folder / "context")
    roots: dict[str, FreshRoot] = {}
    for number, stage in enumerate(stages):
        root = FreshRoot(base, folder / f"stage-{number}")
        config = root.run_stage(stage, context, roots)
        roots[stage.name] = root
    yield root, config
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def copy_context(folder: Path) -> Path:
    """Copy the files that `.dockerignore` leaves in the build context."""
    folder.mkdir()
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    for name in [line[1:] for line in lines if line.startswith("!")]:
        subprocess.run(["cp", "-a", str(ROOT / name), str(folder)], check=True)
    return folder


def find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_server_runs_as_a_user_in_a_read_only_root(
    image: tuple[FreshRoot, ImageConfig], tmp_path: Path
) -> None:
    root, config = image
    port = find_free_port()
    extra = {"DRAGOMAN_PORT": str(port), "DRAGOMAN_API_KEY": KEY}
    url = f"http://127.0.0.1:{port}"
    with run_container(root, config, tmp_path, extra) as container:
        assert container.wait_until_healthy(extra) == "ready\n"
        assert httpx.get(f"{url}/v1/models").status_code == 401
        pdf = base64.b64encode(make_pdf()).decode()  # decoded by a worker process
        file = {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{pdf}"}
        content = [{"type": "text", "text": "Hello!"}, {"type": "file", "file": file}]
        messages = [{"role": "user", "content": content}]
        answer = httpx.post(
            f"{url}/v1/chat/completions",
            headers={"authorization": f"Bearer {KEY}"},
            json={"model": "smollm2-135m", "messages": messages, "max_tokens": 5},
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] in range(1, 6)

        assert container.execute(["id", "-u"]).stdout == "10001\n"
        written = container.execute(["sh", "-c", "touch /opt/dragoman/x /etc/x"])
        assert written.stderr.count("Read-only file system") == 2
        modules = "psycopg, mcp, PIL, soundfile, pypdf, opentelemetry.sdk"
        assert container.execute(["python", "-c", f"import {modules}"]).returncode == 0
        assert container.stop() == 0, "".join(container.output)
    assert (tmp_path / "models" / "smollm2-135m").is_dir()
    assert (tmp_path / "var-lib-dragoman" / "state.db").is_file()
    assert KEY not in "".join(container.output)


def test_image_does_not_serve_the_network_without_a_key(
    image: tuple[FreshRoot, ImageConfig], tmp_path: Path, default_model: Path
) -> None:
    root, config = image
    (tmp_path / "models").mkdir()
    subprocess.run(["cp", "-a", str(default_model.parent), str(tmp_path / "models")], check=True)
    subprocess.run(["chown", "-R", config.user, str(tmp_path / "models")], check=True)
    extra = {"DRAGOMAN_PORT": str(find_free_port())}
    with run_container(root, config, tmp_path, extra) as container:
        assert container.wait() == 1
    assert "without an API key" in "".join(container.output)
    assert "Traceback" not in "".join(container.output)


def test_server_runs_with_the_newest_python_of_debian(tmp_path: Path) -> None:
    """The testing suite has Python 3.14, for which no image is needed."""
    root = FreshRoot(make_base(CACHE, "forky", "libgomp1"), tmp_path / "root")
    copy_context(root.path / "src")
    config = ImageConfig(environment={"HOME": "/home"}, workdir="/src", volumes=["/home"])
    config.entrypoint = config.health = ["/env/bin/dragoman"]
    config.command, config.health = ["serve"], [*config.health, "health"]
    root.run(["sh", "-c", "python -m venv /env && /env/bin/pip install ."], config)
    extra = {"DRAGOMAN_PORT": str(find_free_port())}
    with run_container(root, config, tmp_path, extra) as container:
        container.wait_until_healthy(extra)
        version = container.execute(["/env/bin/python", "--version"]).stdout
        assert container.stop() == 0, "".join(container.output)
    assert version.startswith("Python 3.14"), version
