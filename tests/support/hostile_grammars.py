"""Hostile grammars, patterns and choices as JSON texts; see `hostile`."""

from __future__ import annotations

import json
from collections.abc import Callable

LargeText = Callable[[], str]


def quote_text(text: str) -> str:
    return json.dumps(text)


def join_rules(*rules: str) -> str:
    return json.dumps("\n".join(rules))


def repeat_piece(head: str, piece: str, times: int, tail: str = "") -> LargeText:
    """Repeat a piece of a grammar; NUMBER in it is replaced with its number."""
    return lambda: json.dumps(
        head + "".join(piece.replace("NUMBER", str(i)) for i in range(times)) + tail
    )


def nest_group(
    before: str, times: int, inner: str, after: str, head: str = "root ::= "
) -> LargeText:
    return lambda: json.dumps(head + before * times + inner + after * times)


ANY = "/(?s:.*)/"
DEEP: dict[str, str | LargeText] = {
    "60,000 groups": nest_group("(", 60_000, '"a"', ")"),
    "250 groups": nest_group("(", 250, '"a"', ")*"),
    "250 groups, lark": nest_group("(", 250, '"a"', ")?", "start: "),
    "repeats of repeats": nest_group("(", 8, '"a"', "){0,1000}"),
    "repeats of repeats, lark": nest_group("(", 8, "/a/", "){900,1000}", "start: "),
    "groups of choices": nest_group('("a" | "b" ', 200, '"c"', ")*"),
    "quotes hide brackets": quote_text('root ::= "' + '\\"(' * 5_000 + '"'),
    "10,000 rules in a row": lambda: json.dumps(
        "start: r0\n" + "".join(f"r{i}: r{i + 1} | /x/\n" for i in range(10_000)) + "r10000: /y/"
    ),
    "10,000 unclosed": quote_text("start: " + "(" * 200 + "[" * 10_000),
}
WIDE: dict[str, str | LargeText] = {
    "3,000 optional": repeat_piece("root ::= ", '"a"? ', 3_000),
    "3,000 optional, lark": repeat_piece("start: ", '"a"? ', 3_000),
    "10,000 choices": repeat_piece('start: "z"', ' | "choice NUMBER"', 10_000),
    "10,000 rules": repeat_piece('start: "z"\n', 'rule_NUMBER: "a" rule_NUMBER\n', 10_000),
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
    "500 words at once": repeat_piece(
        "start: (" + " | ".join(f"T{i}" for i in range(500)) + ")*\n",
        "TNUMBER: /[a-z]{0,NUMBER}x[a-z]*NUMBER/\n",
        500,
    ),
    "many places at once": join_rules(r"start: T", r"T: /(?s:.*)a(?s:.{300})/"),
    "intersections": join_rules(
        "start: T", "T: " + " & ".join(f"/(?s:.*)a(?s:.{{{n}}})/" for n in range(30))
    ),
    "intersections, later": join_rules(
        "start: /[a-z]{9}/ T",
        "T: " + " & ".join(f"/x{{20}}(?s:.*)a(?s:.{{{n}}})/" for n in range(30)),
    ),
    "intersections in a schema": join_rules(
        "start: %json "
        + json.dumps({"allOf": [{"type": "string", "pattern": f"a.{{{n}}}$"} for n in range(30)]})
    ),
    "a long forced text": quote_text('start: ("abcdefghij"){1000000}'),
    "brackets in comments": lambda: json.dumps('start: "a"\n// ' + "[" * 60_000),
    "complements": join_rules(
        "start: T", "T: " + " & ".join(f"~/(?s:.*)a{n}(?s:.*)b(?s:.*)/" for n in range(60))
    ),
}
RECURSIVE: dict[str, str | LargeText] = {
    "left": quote_text('root ::= root "a" | "b"'),
    "left, lark": join_rules('start: start "a" | "b"'),
    "left, hidden": join_rules('start: e start "a" | "b"', 'e: "" | "c"?'),
    "left, indirect": join_rules('start: b "a" | "x"', 'b: start "c" | "y"'),
    "any tree": join_rules('start: s "."', 's: s s | "a" | ""'),
    "any tree of any tree": join_rules('start: s "."', 's: s s s s | s s | "a"? | ""'),
    "nothing repeated": join_rules('start: (""*)*'),
    "nothing recursively": join_rules('start: a "z"', "a: b | a", 'b: a | ""'),
    "optional repeated": quote_text('root ::= ((("a"?)*)*)+'),
    "no end": join_rules('start: "a" start'),
    "only itself": join_rules("start: start"),
    "only itself, gbnf": quote_text("root ::= root"),
    "palindromes": join_rules('start: "a" start "a" | "b" start "b" | ""'),
    "ambiguous words": join_rules("start: (A | B | C)*", "A: /[a-z]+/", "B: /[a-z ]+/", "C: /.*/"),
    "free texts in a row": join_rules("start: " + f"{ANY} " * 40),
}
INVALID: dict[str, str | LargeText] = {
    "an empty intersection": join_rules('start: "a" X', "X: /[0-9]/ & /[a-z]/"),
    "an empty class": quote_text('root ::= "a" [^\\x00-\\U0010FFFF]'),
    "beyond unicode": quote_text("root ::= [\\U00110000-\\U7fffffff]"),
    "a class backwards": quote_text("root ::= [z-a]"),
    "half a character": quote_text('root ::= "\ud800"'),
    "half a character, escaped": quote_text('root ::= "\\uD800"'),
    "NUL": quote_text('root ::= "a\x00b"'),
    "unknown rules": quote_text("root ::= nothing-here"),
    "unclosed": quote_text('root ::= ("a"'),
    "unclosed text": quote_text('root ::= "a'),
    "unclosed, lark": join_rules("start: nonsense(("),
    "empty": quote_text(" \n "),
    "no start": join_rules('begin: "a"'),
    "twice": join_rules('start: "a"', 'start: "b"'),
    "noise": quote_text("\x7f\x00::=\udfff%%%[[[("),
    "names that we generate": join_rules(
        "start: own_start value_1 LARK_1", 'own_start: "a"', 'value_1: "b"'
    ),
}
DIRECTIVES: dict[str, str | LargeText] = {
    "a header alone": quote_text("%llguidance"),
    "a header of nothing": quote_text("%llguidance {}"),
    "a header of noise": quote_text("%llguidance [[[\nstart: /a/"),
    "a header, odd": quote_text('%llguidance {"bogus": {"a": {}}, "no_forcing": 5}\nstart: /a/'),
    "a header in a header": quote_text('%llguidance {"a": {"b": {}}}\nstart: /a/'),
    "no forcing": quote_text('%llguidance {"no_forcing": true}\nstart: "forced"'),
    "bytes": quote_text('%llguidance {"allow_invalid_utf8": true}\nstart: /[\\xff]{5}/'),
    "a header later": join_rules('start: "a"', '%llguidance {"allow_invalid_utf8": true}'),
    "imports": join_rules("%import /etc/passwd", "%import common.NOTHING", "start: /a/"),
    "an import": join_rules("%import common.INT", "start: INT"),
    "ignored": join_rules("%ignore /(?s:.*)/", 'start: "a" "b"'),
    "declared": join_rules("%declare X", "start: X", "%override start: X"),
    "a grammar inside": join_rules("start: %lark { start: %lark { start: start } }"),
    "json inside": join_rules(
        "start: %json " + '{"type":"array","items":' * 2_000 + "{}" + "}" * 2_000
    ),
    "a reference inside": join_rules('start: %json {"$ref":"http://127.0.0.1:9/"}'),
    "a file inside": join_rules('start: %json {"$ref":"file:///etc/passwd"}'),
    "json, unclosed": join_rules('start: %json {"type":"object"'),
    "json, odd": join_rules('start: %json {"x-guidance":{"item_separator":"("},"type":["array"]}'),
    "json, bounds": join_rules('start: %json {"type":"string","minLength":1000000000}'),
    "json, items": join_rules('start: %json {"type":"array","minItems":1000000}'),
    "parts of a text": lambda: json.dumps(
        'start: %regex {"substring_chars":"' + "ab" * 50_000 + '"}'
    ),
    "words of a text": lambda: json.dumps(
        'start: %regex {"substring_words":"' + "a b " * 20_000 + '"}'
    ),
    "regex, odd": join_rules('start: %regex {"substring_chunks": 5}'),
    "tokens": join_rules("start: <[0-49151]>*"),
    "unknown tokens": join_rules("start: <[4294967295]> <[99999999999999999999]>"),
    "no token": join_rules("start: <[^0-49151]>"),
    "a special token": join_rules('start: <|im_end|> "a" <|nothing|>'),
    "another grammar": join_rules("start: @other"),
    "odd attributes": join_rules('start[max_tokens=99999999999999999999, temperature=-5]: "a"'),
    "no tokens": join_rules('start[max_tokens=0]: "a"'),
    "lazy": join_rules("start[lazy]: /(?s:.*)/"),
    "stops": join_rules("start: a a a", 'a[stop=""]: /(?s:.*)/'),
    "suffix": join_rules("start: a*", "a[suffix=/x*/]: /(?s:.*)/"),
    "captures": join_rules('start[capture="../../etc/passwd"]: /a/'),
    "parameters": join_rules(
        "start: a::0", 'a::_: "x" a::incr([0:63]) | "y" a::decr([0:63]) | "" %if is_ones([0:63])'
    ),
    "parameters in a row": join_rules(
        "start: a::0",
        "a::_: "
        + " | ".join(f'"{chr(97 + i)}" a::set_bit({i}) %if bit_clear({i})' for i in range(26))
        + ' | "" %if is_ones([0:26])',
    ),
    "parameters without letters": join_rules(
        "start: a::0 /z/",
        'a::_: a::incr([0:20]) | "" %if is_ones([0:20])',
    ),
    "parameters, odd": join_rules("start: a::0", "a::_: b::bit_set(99) %if nothing(5)"),
}
GRAMMARS: dict[str, str | LargeText] = {
    **{f"deep, {name}": value for name, value in DEEP.items()},
    **{f"wide, {name}": value for name, value in WIDE.items()},
    **{f"recursive, {name}": value for name, value in RECURSIVE.items()},
    **{f"invalid, {name}": value for name, value in INVALID.items()},
    **{f"directive, {name}": value for name, value in DIRECTIVES.items()},
}

PATTERNS: dict[str, str | LargeText] = {
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

CHOICES: dict[str, str | LargeText] = {
    "none": "[]",
    "an empty one": '[""]',
    "a number": "[5]",
    "not a list": '"a"',
    "1,001": lambda: json.dumps([f"choice {i}" for i in range(1_001)]),
    "1,000 long ones": lambda: json.dumps([f"{i} " + "a" * 1_000 for i in range(1_000)]),
    "1,000 with common prefixes": lambda: json.dumps(["a" * (i + 1) for i in range(1_000)]),
    "5 MB": lambda: json.dumps(["a" * 5_000_000]),
    "NUL": '["\\u0000"]',
    "half a character": '["\\ud800"]',
    "special tokens": json.dumps(["<|im_end|>", "<|im_start|>", "<tool_call>", "</tool_call>"]),
    "quotes": json.dumps(['"', "\\", "\n", "\\n", '" | /.*/', "/", "%json {}"]),
}
