"""API keys: who may use what, and how much of it. Nothing here knows HTTP.

`entries` reads keys with their scopes and limits, `key_file` a file of keys, and `key_store` holds
those that are valid now and reads them again when they change. `rate_limits` counts the requests
and tokens of each owner, and `audit` records what administrators do and who is refused.
"""

from dragoman.keys.audit import AuditLog
from dragoman.keys.entries import KeyEntry, KeyFileError
from dragoman.keys.key_settings import KeySettings, make_key_settings
from dragoman.keys.key_store import KeyStore
from dragoman.keys.rate_limits import RateLimiter

__all__ = [
    "AuditLog",
    "KeyEntry",
    "KeyFileError",
    "KeySettings",
    "KeyStore",
    "RateLimiter",
    "make_key_settings",
]
