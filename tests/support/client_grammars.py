"""Grammars for the text of a tool, with texts that match them and texts that do not."""

from __future__ import annotations

from typing import NamedTuple

PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
PATCHES = [
    "*** Begin Patch\n*** Delete File: a b.py\n*** End Patch",
    '*** Begin Patch\n*** Add File: "é".py\n+print("hi\\n\t😀 <b> </p> \x7f \'")\n+\n'
    "*** End Patch\n",
    "*** Begin Patch\n*** Update File: x\n*** Move to: y\n@@ def f():\n-a\n+b < c\n c\n@@\n+\\\n"
    "*** End of File\n*** Add File: z\n+<think>{}</think>\n*** End Patch",
]
INVALID_PATCHES = [
    "",
    "*** Begin Patch\n*** End Patch",
    "*** Begin Patch\n*** Add File: a\n*** End Patch",
    "*** Begin Patch\n*** Add File: \n+a\n*** End Patch",
    "*** Begin Patch\r\n*** Delete File: a\n*** End Patch",
    "*** Begin Patch\n*** Delete File: a\n*** End Patch\n\n",
    "*** Begin Patch\n*** Update File: x\nno mark\n*** End Patch",
    "*** Begin Patch *** Delete File: a\n*** End Patch",
    "*** Begin Patch\\n*** Delete File: a\n*** End Patch",
]
QUERY = r"""
%import common.WS_INLINE
%import common (SIGNED_NUMBER, ESCAPED_STRING)
%ignore WS_INLINE
start: "SELECT"i columns "FROM"i NAME where?
columns: "*" | NAME ("," NAME)*
where: "WHERE"i test (("AND"i | "OR"i) test)*
test: NAME ("<" | "<=" | "=" | "<>") value | "(" test ")"
value: SIGNED_NUMBER | ESCAPED_STRING | NAME
NAME: /[a-z_][a-z0-9_]*/ & ~/select|from|where|and|or/
"""


class Case(NamedTuple):
    grammar: str
    matching: list[str]
    other: list[str]


CASES: dict[str, Case] = {
    "a patch": Case(PATCH, PATCHES, INVALID_PATCHES),
    "a query": Case(
        QUERY,
        [
            "SELECT * FROM t",
            "select a, b_1 from t where (x < 5.5) and y<> \"a\\\"b 'é'\\\\\"",
            "SELECT a FROM t WHERE b <= c OR d = -1",
        ],
        [" SELECT * FROM t", "SELECT from FROM t", "SELECT * FROM t WHERE a\n= 1", 'SELECT "a'],
    ),
    "words": Case('start: /[a-z]+/ (" " /[a-z]+/)*', ["ab cd", "x"], ["", "a  b", "A"]),
    "any text": Case(r"start: /(?s:.*)/", ["", 'a\n"b"\\\t', "</a>", "\x00é😀"], []),
    "some text": Case(r"start: /.+/", ['"\\', "é", "</"], ["", "a\nb", "\n"]),
    "a terminal that may contain its end": Case(
        r"start: /.*;/", ['a";";', ";", ";;"], ["", "a", "a\n;", "; "]
    ),
    "quotes": Case(
        r'start: (STRING | WORD) ("," (STRING | WORD))*' + "\n"
        r'STRING: "\"" /([^"\\\n]|\\.)*/ "\""' + "\nWORD: /\\w+/",
        ['"a\\"b",c', "é_1,ñ", '"\t"', '"\\\\"'],
        ['"a', '"a\n"', 'a"b"', ",", '"\\"'],
    ),
    "two lines": Case(
        'start: "a\\n\\"b\\"\\t\\u00e9"i', ['A\n"B"\té', 'a\n"b"\tÉ'], ['a"b"', "a\n"]
    ),
    "lines": Case(
        "start: line+\nline: /[^\\n]*/ NL\nNL: /\\r?\\n/",
        ["\n", "a\n", '"b"\n\nc\\\n'],
        ["", "a", "a\nb"],
    ),
    "returns": Case("start: /[^\\r\\n]*/ NL\nNL: /\\r?\\n/", ["a\r\n", "\n"], ["a\r", "\r\r\n"]),
    "ranges": Case(
        'start: ("a".."f" | /[\\x{e9}-\\u{1F600}]/ | "\\\\" "x"~2..3)+',
        ["abc", "é😀", "\\xxx\\xx", "中"],
        ["g", "\\x", "😁", "\\xxxx"],
    ),
    "counts": Case(
        r'start: ("a" | "\"" | /[^\x{0}-y]/){2,4} /["\\]{1,3}/?',
        ['aa"z', "aé\\", '""'],
        ["a", "aaaaa", "a\\\\"],
    ),
    "optional": Case('start: ["-"] "\\""? (/[0-9]+/ | "")', ["", "-", '-"12', '"'], ["--", '""']),
    "recursion": Case(
        r'start: value' + "\n"
        r'value: "[" (value ("," value)*)? "]" | TEXT | "\n"' + "\n"
        r"TEXT: /'[^']*'/",
        ["[]", "['a\n\"',[[]]]", "\n", "[[\n]]"],
        ["[", "[,]", "'", "]"],
    ),
    "right recursion": Case('start: "\\"" start | "."', [".", '"""".'], ['"', ".."]),
    "a complement": Case(
        r"start: WORD" + "\n" r"WORD: /[^\n ]+/ & ~/(?s:.*)bad(?s:.*)/",
        ['go"od', "ba", "b\\ad", "é"],
        ["", "bad", '"bad"', "a b"],
    ),
    "comments": Case(
        "%import common.C_COMMENT\n%import common.NEWLINE -> NL\n"
        "start: (C_COMMENT NL)+ // the end\n",
        ["/* a\n * \"b\" **/\n\r\n", "/**/\n/*\\*/\n"],
        ["/*\n", "/**/", "/**/a\n"],
    ),
    "a choice on lines": Case(
        '!start: "a" -> one\n  | "\\t" two -> other\n\n  | ""\n?two: /\\S/ "\\""?',
        ["a", "", "\té", '\t""', "\t\\"],
        ["\t", "b", '\t"""'],
    ),
    "ignored case": Case(
        'start: /(?i:straße|k)/ /É/i', ["STRAßE\u00e9", "\u212aÉ", "straẞeé"], ["kE"]
    ),
    "tags": Case(
        'start: ("<" NAME ">" | "</" NAME ">" | /[^<>]+/ | "<")*\nNAME: /[a-z]+/',
        ["<a>", "a</b>", "<", "x <y"],
        [">", "<>"],
    ),
}  # fmt: skip
