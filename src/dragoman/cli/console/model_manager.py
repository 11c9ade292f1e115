"""The service that changes models, as commands use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.config import Settings
from dragoman.types import Json

if TYPE_CHECKING:
    from dragoman.models.management.service import ModelManager


@contextmanager
def open_manager(settings: Settings, model: str | None = None) -> Iterator[ModelManager]:
    """Open the models of the settings for a change; `model` may be a path.

    What changes is in the audit log of the settings, if there is one.
    """
    from dragoman.keys import AuditLog
    from dragoman.runtime import make_manager, open_catalog

    manager = make_manager(open_catalog(settings, model), settings)
    if not settings.audit_log:
        yield manager
        return
    audit = AuditLog(Path(settings.audit_log))

    def record(event: str, fields: Mapping[str, Json]) -> None:
        audit.record(event, {**fields, "key": "command line"})

    manager.on_change = record
    try:
        yield manager
    finally:
        audit.close()
