"""The parser of `dragoman engine`, and its actions."""

from __future__ import annotations

import argparse
import sys

from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.flags import COMMON, add_flags, add_usage
from dragoman.cli.console.table import print_table
from dragoman.config import Settings
from dragoman.config.package_index import make_pip_environment

INSTALL, LIST, REMOVE = "install", "list", "remove"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_usage(
        parser,
        "{install,list,remove} [ENGINE] [--device DEVICE]",
        examples=("dragoman engine install vllm", "dragoman engine list"),
    )
    parser.add_argument(
        "action",
        choices=(INSTALL, LIST, REMOVE),
        metavar=f"{INSTALL}, {LIST} or {REMOVE}",
        help="install: download an engine into --engines-dir, or resume the download; "
        "list: list the engines there; remove: delete one",
    )
    parser.add_argument("engine_name", nargs="?", metavar="ENGINE", help="vllm")
    parser.add_argument(
        "--device",
        metavar="DEVICE",
        help="cpu or cuda (default: cuda if there is an NVIDIA driver, else cpu)",
    )
    add_flags(parser, (*COMMON, "engines_dir"))


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    from dragoman.models import environments

    root = settings.engines_path
    if arguments.action == LIST:
        rows = [
            (name, record.version, record.device, str(root / name))
            for name, record in environments.list_installed(root).items()
        ]
        if not rows:
            print("No engine is installed. `dragoman engine install vllm` installs vLLM.")
            return
        print_table(("NAME", "VERSION", "DEVICE", "PATH"), rows)
        return
    if not arguments.engine_name:
        raise CommandFailed(f"Name the engine: dragoman engine {arguments.action} vllm")
    if arguments.action == REMOVE:
        environments.remove_engine(arguments.engine_name, root)
        print(f"{arguments.engine_name} is removed.")
        return
    install(arguments, settings)


def install(arguments: argparse.Namespace, settings: Settings) -> None:
    from dragoman.models import environments
    from dragoman.models.pull import ProgressBar

    options = environments.InstallOptions(
        device=arguments.device or environments.detect_device(),
        environment=make_pip_environment(),
    )
    environments.check_installable(arguments.engine_name, options.device)
    root = settings.engines_path
    print(
        f"Installing {arguments.engine_name} for {options.device} in {root / arguments.engine_name}"
    )
    progress = ProgressBar(sys.stderr)
    try:
        record = environments.install_engine(arguments.engine_name, root, progress.report, options)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        raise CommandFailed(
            f"{error.strerror or error}{where}. Choose another directory with --engines-dir."
        ) from None
    finally:
        progress.close()
    print(f"{arguments.engine_name} {record.version} ({record.device}) is installed.")
