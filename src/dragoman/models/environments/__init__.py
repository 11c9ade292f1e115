"""Engines with an environment of their own: install them, list them, remove them."""

from dragoman.engines.vllm.installation import InstalledEngine
from dragoman.models.environments.install import (
    DEVICES,
    ENGINES,
    InstallOptions,
    check_installable,
    detect_device,
    install_engine,
    list_installed,
    remove_engine,
)

__all__ = [
    "DEVICES",
    "ENGINES",
    "InstallOptions",
    "InstalledEngine",
    "check_installable",
    "detect_device",
    "install_engine",
    "list_installed",
    "remove_engine",
]
