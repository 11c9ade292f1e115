"""Settings that change while the server runs.

The declaration of a setting says whether it is `live`. Those are read where they are used, so that
changing them in place is enough; all others need a restart.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import force_setattr

from dragoman.config.settings import Settings
from dragoman.options import list_fields


class SettingChanges(Struct, frozen=True):
    """The names of the settings that a new reading changes."""

    applied: tuple[str, ...] = ()
    need_restart: tuple[str, ...] = ()


def update_live_settings(settings: Settings, new: Settings) -> SettingChanges:
    """Give live settings their new values, in place, and say which others are different."""
    applied, need_restart = [], []
    for name, field in list_fields(Settings).items():
        value = getattr(new, name)
        if value == getattr(settings, name):
            continue
        if field.setting.is_live:
            force_setattr(settings, name, value)
            applied.append(name)
        else:
            need_restart.append(name)
    return SettingChanges(tuple(applied), tuple(need_restart))
