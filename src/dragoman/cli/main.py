"""The command line: parses the arguments and runs one command.

Only what the arguments need is imported: `--help` and `--version` import no command, and a command
not those of the others.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from dragoman._version import __version__


class CommandEntry(NamedTuple):
    """A command, and the module under `dragoman.cli` with its `add_arguments` and `run`."""

    name: str
    module: str
    summary: str
    aliases: tuple[str, ...] = ()


COMMANDS = (
    CommandEntry("serve", "serve", "serve models over HTTP"),
    CommandEntry("run", "run", "chat with a model, or answer one prompt", ("chat",)),
    CommandEntry("pull", "models.pull", "download a model"),
    CommandEntry("list", "models.list", "list installed models", ("ls",)),
    CommandEntry("show", "models.show", "describe a model"),
    CommandEntry("ps", "ps", "list the models that the running server has loaded"),
    CommandEntry("stop", "stop", "unload a model from the running server"),
    CommandEntry("rm", "models.rm", "delete a model, or one of its names"),
    CommandEntry("cp", "models.cp", "give a model another name"),
    CommandEntry("create", "models.create", "create a model from another one"),
    CommandEntry("bench", "bench", "measure how fast a model answers here"),
    CommandEntry("engine", "engine", "install vLLM, which runs safetensors"),
    CommandEntry(
        "explain",
        "output_format.explain",
        "show how a model writes tool calls and reasoning, and what runs at a URL",
    ),
    CommandEntry("formats", "output_format.formats", "list the known output formats"),
    CommandEntry(
        "new-format",
        "output_format.new_format",
        "make a tool format from an example answer, or name the format that reads it",
    ),
    CommandEntry("config", "config", "print the settings in effect, and where each comes from"),
    CommandEntry("keys", "keys", "make API keys"),
    CommandEntry("health", "health", "check that the running server is ready"),
)

MODEL = "Name the model without a flag."
NEEDLESS = "Leave it out: templates, tool calls and reasoning work without flags."
ALWAYS_ON = "Leave it out: it is always on."
IN_THE_FILE = "Leave it out: the file of the model says whether it embeds or scores."
# Flags of llama-server, vLLM, SGLang and Ollama, and what they are called here, or what to do.
# Of several, the first that the command has.
FOREIGN_FLAGS: dict[str, str | tuple[str, ...]] = {
    **dict.fromkeys(("-m", "--model", "--model-path", "-hf", "-hfr", "--hf-repo"), MODEL),
    **dict.fromkeys(("--jinja", "--enable-auto-tool-choice", "--enable-reasoning"), NEEDLESS),
    **dict.fromkeys(("--metrics", "--enable-metrics", "--enable-prefix-caching"), ALWAYS_ON),
    **dict.fromkeys(("--embedding", "--embeddings", "--is-embedding"), IN_THE_FILE),
    **dict.fromkeys(("--rerank", "--reranking"), IN_THE_FILE),
    **dict.fromkeys(("--n-ctx", "--num-ctx", "--context-length", "--max-model-len"), "--context"),
    **dict.fromkeys(("--max-num-seqs", "--max-running-requests"), "--slots"),
    **dict.fromkeys(("-a", "--alias", "--served-model-name"), "--served-name"),
    **dict.fromkeys(("-v", "--verbose"), "--log-level debug"),
    **dict.fromkeys(("--disable-log-requests", "--log-disable"), "--log-level warning"),
    **dict.fromkeys(("--ssl-certfile", "--ssl-cert-file"), "--tls-cert"),
    **dict.fromkeys(("--ssl-keyfile", "--ssl-key-file"), "--tls-key"),
    **dict.fromkeys(("--lora-modules", "--lora-paths"), "--lora NAME=PATH"),
    **dict.fromkeys(
        ("--tensor-parallel-size", "-tp", "--tp", "--tp-size"),
        "--engine-arg tensor_parallel_size=COUNT",
    ),
    **dict.fromkeys(
        ("--gpu-memory-utilization", "--mem-fraction-static"),
        "--engine-arg gpu_memory_utilization=SHARE",
    ),
    **{
        f"--{name.replace('_', '-')}": f"--engine-arg {name}={value}"
        for name, value in (
            ("pipeline_parallel_size", "COUNT"),
            ("data_parallel_size", "COUNT"),
            ("max_num_batched_tokens", "COUNT"),
            ("dtype", "NAME"),
            ("quantization", "NAME"),
            ("kv_cache_dtype", "NAME"),
            ("enforce_eager", "true"),
            ("trust_remote_code", "true"),
        )
    },
    **{
        flag: (f"--set {name}=NUMBER", f"--sampling {name}=NUMBER")
        for flag, name in (
            ("--top-k", "top_k"),
            ("--top-p", "top_p"),
            ("--min-p", "min_p"),
            ("--repeat-penalty", "repetition_penalty"),
            ("--seed", "seed"),
            ("-n", "max_tokens"),
            ("--predict", "max_tokens"),
            ("--n-predict", "max_tokens"),
            ("--max-tokens", "max_tokens"),
        )
    },
    "--temp": ("--temperature", "--sampling temperature=NUMBER"),
    "--hidethinking": "--hide-reasoning",
    "--chat-template-file": "--chat-template",
    "--tool-call-parser": "--format",
    "--reasoning-parser": "--reasoning-format",
}
OWN_FLAGS = ("-h", "--help", "-v", "--version")  # of the program, without a command
# Commands of Ollama, LM Studio and others, and what they are called here.
FOREIGN_COMMANDS = {
    **dict.fromkeys(("delete", "remove"), "rm"),
    **dict.fromkeys(("download", "get", "fetch"), "pull"),
    **dict.fromkeys(("start", "server", "up"), "serve"),
    **dict.fromkeys(("models", "tags"), "list"),
    "load": "run",
    "unload": "stop",
    "status": "ps",
    "info": "show",
    "copy": "cp",
    "benchmark": "bench",
    "version": "--version",
}


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one line, and whose flags cannot be abbreviated."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"allow_abbrev": False})

    def _get_option_tuples(
        self, option_string: str
    ) -> list[tuple[argparse.Action, str, str | None]]:
        """Leave out flags that begin with the argument: `allow_abbrev` is about two dashes only."""
        matches = super()._get_option_tuples(option_string)
        if option_string in FOREIGN_FLAGS:  # `-hf` is not `-h` with a value
            return []
        return [match for match in matches if option_string.startswith(match[1])]

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.dest == "command" and value not in (action.choices or ()):
            hint = suggest_command(str(value))
            raise argparse.ArgumentError(None, f"there is no command {value!r}.{hint}")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith((".", "?")) else "."
        self.exit(2, f"dragoman: {message}{end} See `{self.prog} --help`.\n")


def build_parser(word: str | None = None) -> argparse.ArgumentParser:
    """Build the parser of all commands, or one that reads command lines with this first word."""
    parser = CommandParser(
        prog="dragoman",
        description="An OpenAI-, Anthropic- and Ollama-compatible server for open models.",
        epilog="Every setting can also be set in the environment as DRAGOMAN_<NAME>, and in "
        "dragoman.yaml. `dragoman config` prints the settings in effect.",
    )
    parser.add_argument("-v", "--version", action="version", version=f"dragoman {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        subparser = commands.add_parser(
            command.name,
            aliases=command.aliases,
            help=command.summary,
            description=f"{command.summary[0].upper()}{command.summary[1:]}.",
        )
        if word is None or word in (command.name, *command.aliases):
            module = import_module(f"dragoman.cli.{command.module}")
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run, parser=subparser)
    return parser


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; a flag that does not exist is an error that names a similar one."""
    words = sys.argv[1:] if arguments is None else [*arguments]
    if words[:1] == ["help"] or not words:
        words = [*words[1:2], "--help"]
    first = words[0].partition("=")[0]
    if first.startswith("-") and first not in OWN_FLAGS:
        hint = suggest_flag(first, OWN_FLAGS) or " Write the flags of a command after it."
        build_parser(first).error(f"there is no flag {first}.{hint}")
    parsed, unknown = build_parser(words[0]).parse_known_args(words)
    for argument in unknown:
        flag = argument.partition("=")[0]
        if flag.startswith("-"):
            hint = suggest_flag(flag, parsed.parser._option_string_actions)
            parsed.parser.error(f"there is no flag {flag}.{hint}")
    if hasattr(parsed, "words"):  # argparse ends a list of arguments at the first flag
        parsed.words += unknown
    elif unknown:
        parsed.parser.error(f"unexpected argument {unknown[0]!r}.")
    return parsed


def suggest_flag(flag: str, known: Collection[str]) -> str:
    """Name the flag that is meant: that of another server, or a misspelt one."""
    found = FOREIGN_FLAGS.get(flag, ())
    for ours in (found,) if isinstance(found, str) else found:
        if not ours.startswith("-"):
            return f" {ours}"
        if ours.split()[0] in known:
            return f" Use `{ours}`."
    # without the dashes, which make short names similar
    names = [name.removeprefix("--") for name in known if name.startswith("--")]
    return suggest_name(flag.lstrip("-"), names).replace("`", "`--", 1)


def suggest_command(name: str) -> str:
    """Name the command that is meant: that of another program, or a misspelt one."""
    if name in FOREIGN_COMMANDS:
        return f" Use `dragoman {FOREIGN_COMMANDS[name]}`."
    names = [known for command in COMMANDS for known in (command.name, *command.aliases)]
    return suggest_name(name, names)


def suggest_name(name: str, known: Iterable[str]) -> str:
    from dragoman.options import suggest  # only mistakes need it

    return suggest(name, known)


def main(arguments: Sequence[str] | None = None) -> None:
    try:
        replace_closed_streams()
        parsed = parse_arguments(arguments)
        from dragoman.cli.console.execute import execute  # which `--help` does not need

        execute(parsed)
    except KeyboardInterrupt:
        sys.exit(130)


def replace_closed_streams() -> None:
    """Open standard streams that the caller closed, as `<&-` and `>&-` do."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            flags = os.O_RDONLY if mode == "r" else os.O_WRONLY
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8"))
