"""Names of models as Ollama writes them: `[host/][namespace/]model[:tag]`.

`latest` is the tag of a name without one, so `writer` and `writer:latest` are one name. It is
stored without the tag and listed with it. The default host and namespace are left out.
"""

from __future__ import annotations

import re

from dragoman.errors import InvalidValue
from dragoman.models.name_index import LATEST, strip_registry

MAX_PARTS = 3  # host, namespace and model
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,79}")
_NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]{0,79}")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,200}(?::[0-9]{1,5})?")


def strip_default_parts(name: str) -> str:
    """Return a name without what is the same in all names: the tag `latest`, Ollama's registry."""
    name = strip_registry(name.strip())
    base, colon, tag = name.rpartition(":")
    return base if colon and base and tag.lower() == LATEST else name


def add_tag(name: str) -> str:
    """Return a name with its tag, as lists show it."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:{LATEST}"


def check_new_name(name: str, param: str) -> str:
    """Return the name under which a new model is stored, or raise an error that names the field."""
    short = strip_default_parts(name)
    *places, last = short.split("/")
    model, colon, tag = last.partition(":")
    patterns = (_HOST, _NAMESPACE)[-len(places) :] if places else ()
    is_valid = (
        len(places) < MAX_PARTS
        and all(pattern.fullmatch(part) for pattern, part in zip(patterns, places, strict=True))
        and _PART.fullmatch(model)
        and (not colon or _PART.fullmatch(tag))
    )
    if not is_valid:
        raise InvalidValue(
            f"invalid model name: `{param}` must be `name`, `name:tag` or `namespace/name:tag`, "
            "with letters, digits, `_`, `-` and `.`.",
            param=param,
        )
    return short
