"""Hides secrets in what is shown to people: passwords in URLs."""

from __future__ import annotations

import re

HIDDEN = "********"
# `USER:PASSWORD@` after a scheme, or at the beginning of a text that has none. A password may have
# any character: all up to the last `@` is hidden.
PASSWORD = re.compile(
    r"(?P<start>//|(?:^|(?<=[\s'\"=]))(?![a-z][a-z0-9+.-]*://))(?P<user>[^/:@\s'\"]*):[^\s'\"]*@",
    re.I,
)
PARAMETER = re.compile(r"(?i)([?&][^=&\s]*(?:passw|token|key|secret)[^=&\s]*=)[^&\s'\"]+")


def mask_password(text: str) -> str:
    """Hide the password in a URL, also in its query."""
    text = PASSWORD.sub(rf"\g<start>\g<user>:{HIDDEN}@", text)
    return PARAMETER.sub(rf"\g<1>{HIDDEN}", text)
