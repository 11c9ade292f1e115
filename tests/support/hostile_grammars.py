"""Grammars, patterns and choices that mean harm, as JSON texts: see `hostile`."""

from __future__ import annotations

import json
from collections.abc import Callable

Many = Callable[[], str]


def said(text: str) -> str:
    return json.dumps(text)


def lark(*rules: str) -> str:
    return json.dumps("\n".join(rules))


def grown(head: str, piece: str, times: int, tail: str = "") -> Many:
    """A grammar of many pieces, in which NUMBER counts."""
    return lambda: json.dumps(
        head + "".join(piece.replace("NUMBER", str(i)) for i in range(times)) + tail
    )


def held(before: str, times: int, inner: str, after: str, head: str = "root ::= ") -> Many:
    return lambda: json.dumps(head + before * times + inner + after * times)


ANY = "/(?s:.*)/"
DEEP: dict[str, str | Many] = {
    "60,000 groups": held("(", 60_000, '"a"', ")"),
    "250 groups": held("(", 250, '"a"', ")*"),
    "250 groups, lark": held("(", 250, '"a"', ")?", "start: "),
    "repeats of repeats": held("(", 8, '"a"', "){0,1000}"),
    "repeats of repeats, lark": held("(", 8, "/a/", "){900,1000}", "start: "),
    "groups of choices": held('("a" | "b" ', 200, '"c"', ")*"),
    "quotes hide brackets": said('root ::= "' + '\\"(' * 5_000 + '"'),
    "10,000 rules in a row": lambda: json.dumps(
        "start: r0\n" + "".join(f"r{i}: r{i + 1} | /x/\n" for i in range(10_000)) + "r10000: /y/"
    ),
    "10,000 unclosed": said("start: " + "(" * 200 + "[" * 10_000),
}
WIDE: dict[str, str | Many] = {
    "3,000 optional": grown("root ::= ", '"a"? ', 3_000),
    "3,000 optional, lark": grown("start: ", '"a"? ', 3_000),
    "10,000 choices": grown('start: "z"', ' | "choice NUMBER"', 10_000),
    "10,000 rules": grown('start: "z"\n', 'rule_NUMBER: "a" rule_NUMBER\n', 10_000),
    "doubling rules": lambda: json.dumps(
        "start: r0\n" + "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(60)) + "r60: /a?/"
    ),
    "doubling terminals": lambda: json.dumps(
        "start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(60)) + "T60: /a/"
    ),
    "a long literal": lambda: json.dumps('start: "' + "a" * 200_000 + '"'),
    "too long": lambda: json.dumps('start: "' + "a" * 900_000 + '"'),
    "far too long": lambda: json.dumps("x" * 10_000_000),
    "white space": lambda: json.dumps(" \n" * 100_000),
    "comments": lambda: json.dumps('start: "a"\n' + "// a\n" * 40_000),
    "500 words at once": grown(
        "start: (" + " | ".join(f"T{i}" for i in range(500)) + ")*\n",
        "TNUMBER: /[a-z]{0,NUMBER}x[a-z]*NUMBER/\n",
        500,
    ),
    "many places at once": lark(r"start: T", r"T: /(?s:.*)a(?s:.{300})/"),
    "meets": lark("start: T", "T: " + " & ".join(f"/(?s:.*)a(?s:.{{{n}}})/" for n in range(30))),
    "meets, later": lark(
        "start: /[a-z]{9}/ T",
        "T: " + " & ".join(f"/x{{20}}(?s:.*)a(?s:.{{{n}}})/" for n in range(30)),
    ),
    "meets in a schema": lark(
        "start: %json "
        + json.dumps({"allOf": [{"type": "string", "pattern": f"a.{{{n}}}$"} for n in range(30)]})
    ),
    "much that must come": said('start: ("abcdefghij"){1000000}'),
    "brackets in comments": lambda: json.dumps('start: "a"\n// ' + "[" * 60_000),
    "what is not": lark(
        "start: T", "T: " + " & ".join(f"~/(?s:.*)a{n}(?s:.*)b(?s:.*)/" for n in range(60))
    ),
}
CIRCLES: dict[str, str | Many] = {
    "left": said('root ::= root "a" | "b"'),
    "left, lark": lark('start: start "a" | "b"'),
    "left in secret": lark('start: e start "a" | "b"', 'e: "" | "c"?'),
    "left by another": lark('start: b "a" | "x"', 'b: start "c" | "y"'),
    "any tree": lark('start: s "."', 's: s s | "a" | ""'),
    "any tree of any tree": lark('start: s "."', 's: s s s s | s s | "a"? | ""'),
    "nothing for ever": lark('start: (""*)*'),
    "nothing in circles": lark('start: a "z"', "a: b | a", 'b: a | ""'),
    "optional for ever": said('root ::= ((("a"?)*)*)+'),
    "no end": lark('start: "a" start'),
    "only itself": lark("start: start"),
    "only itself, gbnf": said("root ::= root"),
    "palindromes": lark('start: "a" start "a" | "b" start "b" | ""'),
    "ambiguous words": lark("start: (A | B | C)*", "A: /[a-z]+/", "B: /[a-z ]+/", "C: /.*/"),
    "free texts in a row": lark("start: " + f"{ANY} " * 40),
}
NOWHERE: dict[str, str | Many] = {
    "an empty meet": lark('start: "a" X', "X: /[0-9]/ & /[a-z]/"),
    "an empty class": said('root ::= "a" [^\\x00-\\U0010FFFF]'),
    "beyond unicode": said("root ::= [\\U00110000-\\U7fffffff]"),
    "a class backwards": said("root ::= [z-a]"),
    "half a character": said('root ::= "\ud800"'),
    "half a character, escaped": said('root ::= "\\uD800"'),
    "NUL": said('root ::= "a\x00b"'),
    "unknown rules": said("root ::= nothing-here"),
    "unclosed": said('root ::= ("a"'),
    "unclosed text": said('root ::= "a'),
    "unclosed, lark": lark("start: nonsense(("),
    "empty": said(" \n "),
    "no start": lark('begin: "a"'),
    "twice": lark('start: "a"', 'start: "b"'),
    "noise": said("\x7f\x00::=\udfff%%%[[[("),
    "our names": lark("start: own_start value_1 LARK_1", 'own_start: "a"', 'value_1: "b"'),
}
ORDERS: dict[str, str | Many] = {
    "a header alone": said("%llguidance"),
    "a header of nothing": said("%llguidance {}"),
    "a header of noise": said("%llguidance [[[\nstart: /a/"),
    "a header, odd": said('%llguidance {"bogus": {"a": {}}, "no_forcing": 5}\nstart: /a/'),
    "a header in a header": said('%llguidance {"a": {"b": {}}}\nstart: /a/'),
    "no forcing": said('%llguidance {"no_forcing": true}\nstart: "forced"'),
    "bytes": said('%llguidance {"allow_invalid_utf8": true}\nstart: /[\\xff]{5}/'),
    "a header later": lark('start: "a"', '%llguidance {"allow_invalid_utf8": true}'),
    "imports": lark("%import /etc/passwd", "%import common.NOTHING", "start: /a/"),
    "an import": lark("%import common.INT", "start: INT"),
    "ignored": lark("%ignore /(?s:.*)/", 'start: "a" "b"'),
    "declared": lark("%declare X", "start: X", "%override start: X"),
    "a grammar inside": lark("start: %lark { start: %lark { start: start } }"),
    "json inside": lark("start: %json " + '{"type":"array","items":' * 2_000 + "{}" + "}" * 2_000),
    "a reference inside": lark('start: %json {"$ref":"http://127.0.0.1:9/"}'),
    "a file inside": lark('start: %json {"$ref":"file:///etc/passwd"}'),
    "json, unclosed": lark('start: %json {"type":"object"'),
    "json, odd": lark('start: %json {"x-guidance":{"item_separator":"("},"type":["array"]}'),
    "json, bounds": lark('start: %json {"type":"string","minLength":1000000000}'),
    "json, items": lark('start: %json {"type":"array","minItems":1000000}'),
    "parts of a text": lambda: json.dumps(
        'start: %regex {"substring_chars":"' + "ab" * 50_000 + '"}'
    ),
    "words of a text": lambda: json.dumps(
        'start: %regex {"substring_words":"' + "a b " * 20_000 + '"}'
    ),
    "regex, odd": lark('start: %regex {"substring_chunks": 5}'),
    "tokens": lark("start: <[0-49151]>*"),
    "tokens that are none": lark("start: <[4294967295]> <[99999999999999999999]>"),
    "no token": lark("start: <[^0-49151]>"),
    "a mark": lark('start: <|im_end|> "a" <|nothing|>'),
    "another grammar": lark("start: @other"),
    "odd attributes": lark('start[max_tokens=99999999999999999999, temperature=-5]: "a"'),
    "no tokens": lark('start[max_tokens=0]: "a"'),
    "lazy": lark("start[lazy]: /(?s:.*)/"),
    "stops": lark("start: a a a", 'a[stop=""]: /(?s:.*)/'),
    "suffix": lark("start: a*", "a[suffix=/x*/]: /(?s:.*)/"),
    "captures": lark('start[capture="../../etc/passwd"]: /a/'),
    "parameters": lark(
        "start: a::0", 'a::_: "x" a::incr([0:63]) | "y" a::decr([0:63]) | "" %if is_ones([0:63])'
    ),
    "parameters in a row": lark(
        "start: a::0",
        "a::_: "
        + " | ".join(f'"{chr(97 + i)}" a::set_bit({i}) %if bit_clear({i})' for i in range(26))
        + ' | "" %if is_ones([0:26])',
    ),
    "parameters without letters": lark(
        "start: a::0 /z/",
        'a::_: a::incr([0:20]) | "" %if is_ones([0:20])',
    ),
    "parameters, odd": lark("start: a::0", "a::_: b::bit_set(99) %if nothing(5)"),
}
GRAMMARS: dict[str, str | Many] = {
    **{f"deep, {name}": value for name, value in DEEP.items()},
    **{f"wide, {name}": value for name, value in WIDE.items()},
    **{f"circle, {name}": value for name, value in CIRCLES.items()},
    **{f"nowhere, {name}": value for name, value in NOWHERE.items()},
    **{f"order, {name}": value for name, value in ORDERS.items()},
}

PATTERNS: dict[str, str | Many] = {
    pattern[:40]: json.dumps(pattern)
    for pattern in (
        "(a*)*b",
        "(a|a)*",
        "(x+x+)+y",
        "(.*a){2000}",
        "(.*,){11}P",
        "([a-z]{1,60}x?){1,60}",
        "(?:a?){1000}a{1000}",
        ".{1000}{1000}",
        "a{1000000}",
        "((((a{100}){100}){100}){100}){100}",
        "a{4294967296}",
        "a{2,1}",
        r"(\p{L}|\p{N}|\p{S}){500}" * 8,
        r"\w{1000}\W{1000}\p{Greek}{1000}",
        r"[\p{L}&&[^\p{Lu}]]{400}[[:alpha:]--[a-c]]{9}",
        "(?i)" + "ſK" * 500,
        r"(?=a)b",
        r"(?<!a)b$",
        r"(a)\1{9}",
        r"(?P<n>a)(?P=n)",
        r"(?P<n",
        r"\b\B\A\z\Z",
        "a\x00b\u0000",
        "\ud800",
        "[",
        "(",
        ")",
        "*",
        "\\",
        "[z-a]",
        "[^]",
        "^$",
        "^(?!)$",
        "[^\\s\\S]",
        "//\n/",
        "(?s:.*)a(?s:.{500})",
        "(" * 1000 + "a" + ")" * 1000,
        "(" * 200 + "a" + ")*" * 200,
        "(?:" * 400 + "a" + "|b)" * 400,
        "|".join(f"w{i}" for i in range(700)),
        "|".join(f"(.*w{i}.*)" for i in range(300)),
    )
} | {
    "10,000 alternatives": lambda: json.dumps("|".join(f"word{i}" for i in range(10_000))),
    "a megabyte": lambda: json.dumps("a?" * 499_000),
}

CHOICES: dict[str, str | Many] = {
    "none": "[]",
    "an empty one": '[""]',
    "a number": "[5]",
    "not a list": '"a"',
    "1,001": lambda: json.dumps([f"choice {i}" for i in range(1_001)]),
    "1,000 long ones": lambda: json.dumps([f"{i} " + "a" * 1_000 for i in range(1_000)]),
    "1,000 alike": lambda: json.dumps(["a" * (i + 1) for i in range(1_000)]),
    "5 MB": lambda: json.dumps(["a" * 5_000_000]),
    "NUL": '["\\u0000"]',
    "half a character": '["\\ud800"]',
    "marks": json.dumps(["<|im_end|>", "<|im_start|>", "<tool_call>", "</tool_call>"]),
    "quotes": json.dumps(['"', "\\", "\n", "\\n", '" | /.*/', "/", "%json {}"]),
}
