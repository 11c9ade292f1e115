"""The files in deploy/ parse, pass their linters, and name only settings that exist.

`make test-deploy` also runs the steps of the Dockerfile.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dragoman import config
from dragoman.cli.main import build_parser
from tests.deploy.dockerfile import parse_dockerfile, read_config
from tests.support.paths import ROOT

DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"
UNIT = DEPLOY / "dragoman.service"


def read_compose() -> dict[str, Any]:
    content = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def parse_unit(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield section, name and value of every line of a unit file."""
    section = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = match[1]
        elif line and not line.startswith("#"):
            name, separator, value = line.partition("=")
            assert section, line
            assert separator, line
            yield section, name, value


@pytest.mark.parametrize("file", ["Dockerfile", "compose.yaml", "dragoman.service", "env.example"])
def test_variables_are_settings(file: str) -> None:
    text = (DEPLOY / file).read_text(encoding="utf-8")
    settings = {config.name_variable(field) for field in config.list_settings().values()}
    names = set(re.findall(r"DRAGOMAN_[A-Z_]+[A-Z]", text))
    assert names
    assert names <= settings


def test_dockerfile_passes_the_linter() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    result = subprocess.run(
        [str(hadolint), str(DOCKERFILE)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


def test_image_runs_as_a_user_and_checks_its_health() -> None:
    image = read_config(parse_dockerfile(DOCKERFILE)[-1])
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", image.user)
    for command in (image.health, [*image.entrypoint, *image.command]):
        assert command[0] == "dragoman"
        build_parser().parse_args(command[1:])
    # what is written is in a volume
    directories = {image.environment["DRAGOMAN_MODELS_DIR"], image.environment["HOME"]}
    assert directories == set(image.volumes)
    assert image.environment["DRAGOMAN_STORE"].startswith(f"sqlite:///{image.environment['HOME']}/")
    assert not [name for name in image.environment if "KEY" in name or "PASSWORD" in name]
    settings = config.load({}, environment=image.environment)
    assert [str(settings.port)] == image.ports


def test_copied_files_are_in_the_build_context() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    for stage in parse_dockerfile(DOCKERFILE):
        for instruction in stage.instructions:
            if instruction.name == "COPY" and "from" not in instruction.flags:
                for source in instruction.words[:-1]:
                    assert (ROOT / source).exists()
                    assert f"!{source}" in ignored


def test_services_of_compose_are_restricted_and_have_health_checks() -> None:
    compose = read_compose()
    services = compose["services"]
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert "/tmp" in service["tmpfs"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        for volume in service["volumes"]:
            assert volume.partition(":")[0] in compose["volumes"]
    server, image = services["dragoman"], read_config(parse_dockerfile(DOCKERFILE)[-1])
    assert services["postgres"]["healthcheck"]["test"][1] == "pg_isready"
    assert server["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert {volume.partition(":")[2] for volume in server["volumes"]} == set(image.volumes)
    assert (DEPLOY / server["build"]["context"] / server["build"]["dockerfile"]).is_file()
    assert int(server["stop_grace_period"].removesuffix("s")) > config.load({}, {}).drain


def test_secrets_of_compose_come_from_the_environment() -> None:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    names = set(re.findall(r"\$\{(\w+)", text))
    example = (DEPLOY / "env.example").read_text(encoding="utf-8")
    assert names == set(re.findall(r"^(\w+)=$", example, flags=re.MULTILINE))


def test_unit_runs_the_server_with_a_user_of_its_own() -> None:
    settings = list(parse_unit(UNIT))
    values = {name: value for _, name, value in settings}
    assert {section for section, _, _ in settings} == {"Unit", "Service", "Install"}
    program, *arguments = values["ExecStart"].split()
    assert program.endswith("/bin/dragoman")
    assert build_parser().parse_args(arguments).command == "serve"
    assert values["DynamicUser"] == "yes"
    assert values["ProtectSystem"] == "strict"
    assert int(values["TimeoutStopSec"]) > config.load({}, {}).drain
    # the server reports that it is ready, and which process is the main one after an upgrade
    assert (values["Type"], values["NotifyAccess"]) == ("notify", "all")
    assert "kill -HUP ${MAINPID}" in values["ExecReload"]
    state = values["StateDirectory"]
    for _, _, value in filter(lambda line: line[1] == "Environment", settings):
        assert f"%S/{state}" in value


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_unit_passes_the_verification_of_systemd(tmp_path: Path) -> None:
    """systemd also checks that the program exists, so the unit gets one that does."""
    text = UNIT.read_text(encoding="utf-8")
    unit = tmp_path / UNIT.name
    unit.write_text(text.replace("/opt/dragoman/bin/dragoman", sys.executable))
    result = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
