"""The regular expressions of the string formats of JSON Schema."""

from __future__ import annotations

DAY = r"(?:0[1-9]|[12][0-9]|3[01])"
MONTHS = (
    rf"(?:(?:0[13578]|1[02])-{DAY}|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
DATE = rf"[0-9]{{4}}-{MONTHS}"
CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
ZONE = r"(?:Z|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?"
FORMATS = {
    "date": DATE,
    "time": CLOCK + ZONE,
    "date-time": f"{DATE}T{CLOCK}{ZONE}",
    "duration": r"P(?:[0-9]{1,9}W|[0-9]{1,9}D(?:T[0-9]{1,9}H)?|T[0-9]{1,9}[HMS]|[0-9]{1,9}[YM])",
    "email": rf"[a-zA-Z0-9._%+\-]{{1,64}}@{LABEL}(?:\.{LABEL}){{1,8}}",
    "hostname": rf"{LABEL}(?:\.{LABEL}){{0,3}}",
    "ipv4": rf"{BYTE}(?:\.{BYTE}){{3}}",
    "ipv6": r"(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|::1",
    "uuid": r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    "uri": r"[a-z][a-z0-9+.\-]{1,15}:\/\/[a-zA-Z0-9.\-]{1,253}(?:\/[a-zA-Z0-9._~\-]{0,64}){0,16}",
}
