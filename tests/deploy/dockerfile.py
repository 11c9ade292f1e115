"""Reads a Dockerfile: its stages, their instructions, and the image that the last one describes."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One instruction, its flags (`--from=build`), and the rest of its line."""

    name: str
    flags: dict[str, str]
    text: str

    @property
    def words(self) -> list[str]:
        """The arguments, in the JSON form or separated by spaces."""
        if self.text.startswith("["):
            return [str(word) for word in json.loads(self.text)]
        return shlex.split(self.text)

    @property
    def command(self) -> list[str]:
        """What runs: the arguments in the JSON form, a command line of the shell otherwise."""
        if self.text.startswith("["):
            return self.words
        return ["/bin/sh", "-c", self.text]


@dataclass
class Stage:
    """A `FROM` and the instructions after it."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)


@dataclass
class ImageConfig:
    """What an image says about how it runs."""

    environment: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    workdir: str = "/"
    volumes: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    stop_signal: str = "SIGTERM"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)

    def apply(self, instruction: Instruction) -> None:
        """Apply an instruction that changes no files."""
        match instruction.name:
            case "ENV":
                pairs = (word.partition("=") for word in instruction.words)
                self.environment |= {name: value for name, _, value in pairs}
            case "USER":
                self.user = instruction.text
            case "WORKDIR":
                self.workdir = instruction.text
            case "VOLUME":
                self.volumes += instruction.words
            case "EXPOSE":
                self.ports += instruction.words
            case "STOPSIGNAL":
                self.stop_signal = instruction.text
            case "HEALTHCHECK":
                check = parse_instruction(instruction.text)
                assert check.name == "CMD"
                self.health = check.command
            case "ENTRYPOINT":
                self.entrypoint = instruction.command
            case "CMD":
                self.command = instruction.command
            case _:
                raise ValueError(f"unknown instruction {instruction.name}")


def parse_dockerfile(path: Path) -> list[Stage]:
    """Read the stages. An `ARG` before the first of them gives values for `FROM`."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    text = re.sub(r"\\\n\s*", "", text)
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        instruction = parse_instruction(line)
        if instruction.name == "FROM":
            words = [substitute(word, arguments) for word in instruction.words]
            stages.append(Stage(base=words[0], name=words[2] if len(words) > 2 else ""))
        elif instruction.name == "ARG" and not stages:
            name, _, value = instruction.text.partition("=")
            arguments[name] = value
        else:
            stages[-1].instructions.append(instruction)
    return stages


def parse_instruction(line: str) -> Instruction:
    name, _, rest = line.partition(" ")
    flags = {}
    while match := re.match(r"--([\w-]+)=(\S+)\s+", rest):
        flags[match[1]] = match[2]
        rest = rest[match.end() :]
    return Instruction(name.upper(), flags, rest.strip())


def substitute(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda match: values[match[1]], text)


def read_config(stage: Stage) -> ImageConfig:
    """Return how the image of a stage runs."""
    config = ImageConfig()
    for instruction in stage.instructions:
        if instruction.name not in ("RUN", "COPY"):
            config.apply(instruction)
    return config
