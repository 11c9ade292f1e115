"""The regular expressions of the string formats of JSON Schema."""

from __future__ import annotations

DAY = r"(?:0[1-9]|[12][0-9]|3[01])"
MONTHS = (
    rf"(?:(?:0[13578]|1[02])-{DAY}|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|[12][0-9]))"
)
DATE = rf"[0-9]{{4}}-{MONTHS}"
CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\.[0-9]{1,9})?"
ZONE = r"(?:[zZ]|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
COUNT = "[0-9]{1,9}"
DAYS = rf"(?:{COUNT}Y(?:{COUNT}M(?:{COUNT}D)?)?|{COUNT}M(?:{COUNT}D)?|{COUNT}D)"
HOURS = rf"T(?:{COUNT}H(?:{COUNT}M(?:{COUNT}S)?)?|{COUNT}M(?:{COUNT}S)?|{COUNT}S)"
BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?"
IPV4 = rf"{BYTE}(?:\.{BYTE}){{3}}"
GROUP = "[0-9a-fA-F]{1,4}"
MOST_GROUPS = 7  # beside `::`


def _repeat_group(count: int) -> str:
    return rf"{GROUP}(?::{GROUP}){{{count - 1}}}" if count else ""


def _list_last_groups(most: int) -> str:
    """Return an expression for the groups after `::`; the last two may be an IPv4 address."""
    if most < 2:
        return f"(?:{GROUP})?" if most else ""
    return rf"(?:(?:{GROUP}:){{0,{most - 2}}}(?:{GROUP}:{GROUP}|{IPV4})|{GROUP})?"


IPV6 = "|".join(
    [rf"(?:{GROUP}:){{6}}(?:{GROUP}:{GROUP}|{IPV4})"]
    + [
        f"{_repeat_group(count)}::{_list_last_groups(MOST_GROUPS - count)}"
        for count in range(MOST_GROUPS + 1)
    ]
)
NAME_CHARACTER = r"(?:[a-zA-Z0-9._~!$&'()*+,;=\-]|%[0-9a-fA-F]{2})"
PATH_CHARACTER = rf"(?:[:@]|{NAME_CHARACTER})"
QUERY = rf"(?:[\/?]|{PATH_CHARACTER})*"
AUTHORITY = rf"(?:(?::|{NAME_CHARACTER})*@)?(?:{NAME_CHARACTER}*|\[(?:{IPV6})\])(?::[0-9]{{0,5}})?"
PATH = rf"(?:\/{PATH_CHARACTER}*)*"
FORMATS = {
    "date": DATE,
    "time": CLOCK + ZONE,
    "date-time": f"{DATE}[tT]{CLOCK}{ZONE}",
    "duration": rf"P(?:{COUNT}W|{DAYS}(?:{HOURS})?|{HOURS})",
    "email": rf"[a-zA-Z0-9._%+\-]{{1,64}}@{LABEL}(?:\.{LABEL}){{0,8}}",
    "hostname": rf"{LABEL}(?:\.{LABEL}){{0,8}}",
    "ipv4": IPV4,
    "ipv6": IPV6,
    "uuid": r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    "uri": (
        rf"[a-zA-Z][a-zA-Z0-9+.\-]*:(?:\/\/{AUTHORITY}{PATH}|\/?{PATH_CHARACTER}+{PATH})"
        rf"(?:\?{QUERY})?(?:#{QUERY})?"
    ),
}
