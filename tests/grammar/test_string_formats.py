"""The formats of strings allow the same texts in JSON and between the tags of a call."""

from __future__ import annotations

import json

import pytest

from dragoman.testing.grammars import match_grammar
from tests.grammar.test_tag_values import TAGS, compile_tool, make_parameter, write_call
from tests.schema_cases import grammar

# texts that have a format, and texts that do not
TEXTS = {
    "date": ("2024-01-01 2024-02-29", "2024-1-1 2024-13-01 2024-04-31"),
    "time": ("12:00:00Z 23:59:60+01:00 12:00:00.5z", "25:00:00Z 12:00Z"),
    "date-time": ("2024-01-01T00:00:00Z 2024-01-01t00:00:00.12+00:00", "2024-01-01"),
    "duration": ("P1D PT1H P1Y2M3DT4H5M6S P2W P1Y2M", "P PT P1 1D"),
    "email": ("a@b.co user@localhost", "@b a@"),
    "hostname": ("a.b.c.d.e.f x", "-a a..b"),
    "ipv4": ("1.2.3.4 255.255.255.255", "256.1.1.1 1.2.3"),
    "ipv6": (
        ":: ::1 1:: 2001:db8::1 ::ffff:1.2.3.4 1:2:3:4:5:6:7:8 1:2:3:4:5:6:1.2.3.4"
        " 1:2:3:4:5:6:7:: ::2:3:4:5:6:7:8 fe80::a:b",
        "1::2::3 12345:: : 1:2:3:4:5:6:7 1:2:3:4:5:6:7:8:9 ::1:2:3:4:5:6:7:8 1:::2",
    ),
    "uuid": ("123e4567-e89b-12d3-A456-426614174000", "123e4567"),
    "uri": (
        "https://a.b/c?d=e&f=g#h mailto:a@b.c urn:isbn:123 http://[::1]:80/ ftp://u:p@x/%20y"
        " https://a.b file:///etc/x http://a.b/c//d HTTP://X",
        "foo //a/b http://a.b/%zz http://x:y",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_formats_allow_the_same_texts_in_json_and_in_tags(name: str) -> None:
    schema = {"type": "string", "format": name}
    sources = {"json": grammar(schema, strict=True)[0]}
    for tags in TAGS:
        sources[tags] = compile_tool(tags, make_parameter(schema)).grammar
    for texts, is_valid in zip(TEXTS[name], (True, False), strict=True):
        for text in texts.split():
            for place, source in sources.items():
                assert source is not None
                written = json.dumps(text) if place == "json" else write_call(place, v=text)
                assert match_grammar(source, written)[0] is is_valid, (place, text)
