"""What models write besides the proper form of a call, and what the parser makes of it.

Each case is read whole, one character at a time and in pieces of five; the result is the same.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import pytest
from msgspec import Struct

from dragoman.output.library import OutputParser
from dragoman.testing.format_checks import fold_spans, parse_pieces

PARAMETERS = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "n": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "array", "items": {"type": "integer"}},
        "o": {"type": "object"},
    },
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in "fg"
]
Calls: TypeAlias = list[tuple[str, dict[str, Any]]]
F: Calls = [("f", {"s": "a"})]
F_G: Calls = [("f", {"s": "a"}), ("g", {"n": 5})]
EMPTY: Calls = [("f", {})]
NONE: Calls = []

DSML, M3 = "｜DSML｜", "]<]minimax[>["
KIMI = ("<|tool_calls_section_begin|><|tool_call_begin|>", "<|tool_calls_section_end|>")
DEEPSEEK = ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁calls▁end｜>")


class Case(Struct, frozen=True):
    """A text, and the calls, text and reasoning in it."""

    format: str
    text: str
    calls: Calls
    content: str = ""
    reasoning: str = ""
    thinks: str | None = None  # the reasoning format
    inside: bool | None = None


def hermes(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def qwen(*arguments: tuple[str, str]) -> str:
    tags = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments)
    return f"<tool_call>\n<function=f>\n{tags}</function>\n</tool_call>"


def glm(*arguments: tuple[str, str]) -> str:
    tags = (f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in arguments)
    return f"<tool_call>f{''.join(tags)}</tool_call>"


def minimax(*arguments: tuple[str, str]) -> str:
    tags = (f"{M3}<{key}>{value}{M3}</{key}>" for key, value in arguments)
    call = f'{M3}<invoke name="f">{"".join(tags)}{M3}</invoke>'
    return f"{M3}<tool_call>\n{call}\n{M3}</tool_call>"


def lfm(body: str) -> str:
    return f"<|tool_call_start|>{body}<|tool_call_end|>"


CALL = '{"name": "f", "arguments": {"s": "a"}}'
OTHER = '{"name": "g", "arguments": {"n": 5}}'

CASES = {
    # members of the object
    "parameters": Case("hermes_json", hermes('{"name": "f", "parameters": {"s": "a"}}'), F),
    "input": Case("hermes_json", hermes('{"name": "f", "input": {"s": "a"}}'), F),
    "function": Case("hermes_json", hermes('{"function": "f", "arguments": {"s": "a"}}'), F),
    "nested function": Case(
        "hermes_json",
        hermes('{"type": "function", "function": {"name": "f", "arguments": {}}}'),
        EMPTY,
    ),
    "name last": Case("hermes_json", hermes('{"arguments": {"s": "a"}, "name": "f"}'), F),
    "two names": Case("hermes_json", hermes('{"name": "g", "name": "f", "arguments": {}}'), EMPTY),
    "spaces in the name": Case("hermes_json", hermes('{"name": " f ", "arguments": {}}'), EMPTY),
    "string": Case("hermes_json", hermes('{"name": "f", "arguments": "{\\"s\\": \\"a\\"}"}'), F),
    "no arguments": Case("hermes_json", hermes('{"name": "f"}'), EMPTY),
    "null": Case("hermes_json", hermes('{"name": "f", "arguments": null}'), EMPTY),
    "empty list": Case("hermes_json", hermes('{"name": "f", "arguments": []}'), EMPTY),
    "empty string": Case("hermes_json", hermes('{"name": "f", "arguments": ""}'), EMPTY),
    "number as name": Case(
        "hermes_json", (text := hermes('{"name": 42, "arguments": {}}')), NONE, text
    ),
    "bare keys": Case("hermes_json", hermes('{name: "f", arguments: {s: "a"}}'), F),
    "two objects": Case("hermes_json", hermes(f"{CALL}\n{OTHER}"), F_G),
    "objects with a comma": Case("hermes_json", hermes(f"{CALL}, {OTHER}"), F_G),
    "list": Case("hermes_json", hermes(f"[{CALL}, {OTHER}]"), F_G),
    # brackets, quotes and fences
    "extra brace": Case("hermes_json", hermes(CALL + "}"), F),
    "extra brace before a call": Case(
        "mistral", '[TOOL_CALLS]f[ARGS]{"s": "a"}}\n[TOOL_CALLS]g[ARGS]{"n": 5}', F_G
    ),
    "brace missing in a list": Case(
        "json_list_tool_calls_tag", f"<tool_calls>[{CALL[:-1]}]</tool_calls>", F
    ),
    "brace missing before a call in a list": Case(
        "mistral", f"[TOOL_CALLS][{CALL[:-1]}, {OTHER}]", F_G
    ),
    "brace missing before a call in Python's brackets": Case(
        "lfm2", lfm(f"[{CALL[:-1]}, {OTHER}]"), F_G
    ),
    "brace missing before a call in a list where calls have markers": Case(
        "hermes_json", hermes(f"[{CALL[:-1]}, {OTHER}]"), F_G
    ),
    "extra brace in a list": Case("functools", f"functools[{CALL}}}]", F),
    "extra brace in a list before a call": Case("xlam", f"[{CALL}}}, {OTHER}}}]", F_G),
    "extra brace at the end": Case("granite_20b_fc", f"<function_call>{CALL}}}", F),
    "extra brace at the end of a turn": Case(
        "granite_20b_fc", f"<function_call>{CALL}}}<|im_end|>", F
    ),
    "extra brace at the end without markers": Case("llama3_json", CALL + "}", F),
    "brace that closes text": Case("llama3_json", f"{{1: {CALL}}}", F, "{1: }"),
    "bracket that closes text": Case("json_bare", f'["a", {CALL}]', F, '["a", ]'),
    "extra brace before text": Case("llama3_json", CALL + "} is it", F, "} is it"),
    "comma and brackets before text": Case(
        "mistral", '[TOOL_CALLS]f[ARGS]{"s": "a"}, [see] above', F, ", [see] above"
    ),
    "extra brace before the marker that ends a call": Case(
        "deepseek_v31",
        f'{DEEPSEEK[0]}f<｜tool▁sep｜>{{"s": "a"}}}}<｜tool▁call▁end｜>{DEEPSEEK[1]}',
        F,
    ),
    "extra brace before the marker that ends a message": Case(
        "harmony",
        '<|channel|>commentary to=functions.f<|message|>{"s": "a"}}<|call|>',
        F,
        thinks="harmony",
    ),
    "extra parenthesis before the closing marker": Case("lfm2", lfm('f(s="a"))'), F),
    "end of turn before a list of calls": Case("granite3", f"<|tool_call|>[<|im_end|>{CALL}]", F),
    "comma before the closing marker": Case("hermes_json", hermes(CALL + ","), F),
    "extra parenthesis": Case("pythonic", '[f(s="a")), g(n=5)]', F_G),
    "empty list of calls": Case("mistral", "[TOOL_CALLS][]", NONE),
    "empty list of calls before text": Case("mistral", "[TOOL_CALLS][] No.", NONE, " No."),
    "parenthesis missing at the end of a line": Case(
        "olmo3", "<function_calls>\nf(s='a'\ng(n=5)\n</function_calls>", F_G
    ),
    "quote and name of a tool in a string": Case(
        "olmo3",
        "<function_calls>\nf(s='the 'g' and\n h(1)')\n</function_calls>",
        [("f", {"s": "the 'g' and\n h(1)"})],
    ),
    "doubled braces": Case("hermes_json", hermes("{" + CALL + "}"), F),
    "trailing comma": Case("hermes_json", hermes('{"name": "f", "arguments": {"s": "a",},}'), F),
    "no comma": Case(
        "hermes_json",
        hermes('{"name": "f", "arguments": {"s": "a" "n": 1}}'),
        [("f", {"s": "a", "n": 1})],
    ),
    "quotes in a string": Case(
        "hermes_json",
        hermes('{"name": "f", "arguments": {"s": "say "hi" now", "n": 1}}'),
        [("f", {"s": 'say "hi" now', "n": 1})],
    ),
    "unclosed string": Case(
        "hermes_json",
        hermes('{"name": "f", "arguments": {"s": "a, "n": 1}}'),
        [("f", {"s": "a, ", "n": 1})],
    ),
    "apostrophe": Case(
        "sarashina",
        "<|tool_calls|>[{'name': 'f', 'arguments': {'s': 'it's'}}]",
        [("f", {"s": "it's"})],
    ),
    "fence": Case("hermes_json", hermes(f"```json\n{CALL}\n```"), F),
    "fence in a list": Case(
        "json_list_tool_calls_tag", f"<tool_calls>```\n[{CALL}]\n```</tool_calls>", F
    ),
    "escapes": Case(
        "hermes_json",
        hermes('{"name": "f", "arguments": {"s": "\\u00e9\\ud83d\\ude00\\n\\/"}}'),
        [("f", {"s": "é😀\n/"})],
    ),
    # markers
    "doubled opener": Case("hermes_json", f"<tool_call>\n<tool_call>{CALL}</tool_call>", F),
    "doubled closer": Case("hermes_json", f"{hermes(CALL)}\n</tool_call>Yes", F, "\nYes"),
    "doubled section": Case(
        "kimi_k2",
        f'{KIMI[0][:28]}{KIMI[0]}functions.f:0<|tool_call_argument_begin|>{{"s": "a"}}'
        f"<|tool_call_end|>{KIMI[1]}",
        F,
    ),
    "no opener": Case("hermes_json", f"{hermes(CALL)}\n{OTHER}\n</tool_call>", F_G),
    "echo": Case("hermes_json", f"{hermes(CALL)}{CALL}\n</tool_call> Done", F, " Done"),
    "echo in Python": Case(
        "lfm2", f"{lfm('[f(s=1)]')}[f(s=1)]<|tool_call_end|>", [("f", {"s": "1"})]
    ),
    "object after a call": Case("hermes_json", f"{hermes(CALL)}\n{OTHER}", F, f"\n{OTHER}"),
    "end of turn": Case("glm47", f"{glm(('s', 'a'))}<|endoftext|>", F),
    "end of turn, then text": Case("hermes_json", f"{hermes(CALL)}<|im_end|>\nOk", F, "\nOk"),
    "end of turn in text": Case(
        "hermes_json", "I write <|im_end|> here", NONE, "I write <|im_end|> here"
    ),
    "empty section": Case("lfm2", lfm("[]"), NONE),
    "empty list in a section": Case("hermes_json", hermes("[]"), NONE),
    "words in a section": Case(
        "minimax_m2",
        "<minimax:tool_call>\nNo tool fits.\n</minimax:tool_call>",
        NONE,
        "No tool fits.\n",
    ),
    "a quoted section": Case(
        "minimax_m2",
        (text := "Write <minimax:tool_call> and </minimax:tool_call> around it."),
        NONE,
        text,
    ),
    "no section": Case(
        "kimi_k3",
        '<|open|>call tool="f" index="1"<|sep|><|open|>argument key="s" type="string"<|sep|>a'
        "<|close|>argument<|sep|><|close|>call<|sep|>",
        F,
    ),
    "no section in a message": Case(
        "muse_glimmer",
        ' to=f<|message|><atem:invoke name="f">\n<atem:parameter name="s">a</atem:parameter>\n'
        "</atem:invoke><|eom|>",
        F,
    ),
    # named arguments
    "nothing after the name": Case(
        "deepseek_v31", f"{DEEPSEEK[0]}f<｜tool▁sep｜><｜tool▁call▁end｜>{DEEPSEEK[1]}", EMPTY
    ),
    "spaces around all": Case(
        "deepseek_v31",
        f'{DEEPSEEK[0]} f <｜tool▁sep｜> {{"s": "a"}} <｜tool▁call▁end｜> {DEEPSEEK[1]}',
        F,
    ),
    "no fence": Case(
        "deepseek_v3",
        f'{DEEPSEEK[0]}function<｜tool▁sep｜>f\n{{"s": "a"}}<｜tool▁call▁end｜>{DEEPSEEK[1]}',
        F,
    ),
    "an id as name": Case(
        "kimi_k2",
        (
            text
            := f'{KIMI[0]}call_3<|tool_call_argument_begin|>{{"s": "a"}}<|tool_call_end|>{KIMI[1]}'
        ),
        NONE,
        text,
    ),
    "a word for a value": Case(
        "kimi_k2",
        f'{KIMI[0]}functions.f:0<|tool_call_argument_begin|>{{"s": "a", "n": fasle<|tool_call_end|>'
        f"{KIMI[1]}",
        [("f", {"s": "a", "n": "fasle"})],
    ),
    "keys of several words": Case(
        "gemma4",
        '<|tool_call>call:f{o:{first name:<|"|>b<|"|>,x y z:3},s:<|"|>a<|"|>}<tool_call|>',
        [("f", {"o": {"first name": "b", "x y z": 3}, "s": "a"})],
    ),
    "keys of several words without quotes": Case(
        "hermes_json",
        hermes('{"name": "f", "arguments": {"o": {first name: 1, last name": 2}}}'),
        [("f", {"o": {"first name": 1, "last name": 2}})],
    ),
    # Python
    "a literal that JSON lacks": Case(
        "lfm2", lfm("[f(tags={'x', 'y'}, n=07)]"), [("f", {"tags": ["x", "y"], "n": 7})]
    ),
    "nested quotes": Case(
        "lfm2", lfm("[f(s='sed -n '1,2p' x')]"), [("f", {"s": "sed -n '1,2p' x"})]
    ),
    "a call in a string": Case(
        "lfm2",
        lfm("""[f(s='python -c "print(f('x'))"')]"""),
        [("f", {"s": """python -c "print(f('x'))\""""})],
    ),
    "no literal": Case("lfm2", lfm("[f(s='a'), g(n=b'z')]"), F, ", g(n=b'z')]"),
    "an expression": Case(
        "lfm2", lfm("[f(s='a'), g(o=lambda: 3), g(n=5)]"), F_G, ", g(o=lambda: 3), "
    ),
    "lines": Case("olmo3", "<function_calls>\nf(s='a')\ng(n=5)\n</function_calls>", F_G),
    "text around a list": Case("pythonic", "First [f(s='a')] then [g(n=5)].", F_G, "First  then ."),
    # values between tags
    "a list of two values": Case(
        "qwen3_coder", qwen(("tags", "x"), ("tags", "y")), [("f", {"tags": ["x", "y"]})]
    ),
    "a list of numbers": Case(
        "glm47", glm(("sizes", "1"), ("sizes", "2")), [("f", {"sizes": [1, 2]})]
    ),
    "a list of elements": Case(
        "minimax_m3",
        minimax(("tags", "x"), ("tags", "y"), ("s", "a")),
        [("f", {"tags": ["x", "y"], "s": "a"})],
    ),
    "one value for a list": Case(
        "qwen3_coder", qwen(("tags", "x"), ("s", "a")), [("f", {"tags": "x", "s": "a"})]
    ),
    "a list": Case("qwen3_coder", qwen(("tags", '["x"]')), [("f", {"tags": ["x"]})]),
    "the last of two values": Case("qwen3_coder", qwen(("s", "x"), ("s", "a")), F),
    "a list cut short": Case(
        "qwen3_coder",
        qwen(("tags", "x"), ("tags", "y"))[: -len("</function>\n</tool_call>")],
        [("f", {"tags": ["x", "y"]})],
    ),
    "a closing tag in a list": Case(
        "qwen3_coder",
        qwen(("tags", '["</parameter>", "<parameter=s>"]'), ("s", "a")),
        [("f", {"tags": ["</parameter>", "<parameter=s>"], "s": "a"})],
    ),
    "a list whose string is not closed": Case(
        "qwen3_coder",
        qwen(("tags", '["x'), ("s", "a")),
        [("f", {"tags": '["x', "s": "a"})],
    ),
    "a doubled closing tag": Case(
        "qwen3_coder",
        qwen(("n", "1\n</parameter>"), ("s", "a")),
        [("f", {"n": 1, "s": "a"})],
    ),
    "a doubled closing tag of an argument": Case(
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="n">1</parameter></parameter>\n'
        '<parameter name="s">a</parameter>\n</invoke>\n</minimax:tool_call>',
        [("f", {"n": 1, "s": "a"})],
    ),
    "an empty element in a list": Case(  # as the template writes null
        "minimax_m3",
        minimax(("o", f"{M3}<x>{M3}<item>1{M3}</item>{M3}<item>{M3}</item>{M3}</x>")),
        [("f", {"o": {"x": [1, None]}})],
    ),
    "next tag closes": Case(
        "deepseek_v4",
        f'<{DSML}tool_calls><{DSML}invoke name="f">\n<{DSML}parameter name="s" string="true">a'
        f'<{DSML}parameter name="n" string="false">1</{DSML}parameter></{DSML}invoke>'
        f"</{DSML}tool_calls>",
        [("f", {"s": "a", "n": 1})],
    ),
    # messages and reasoning
    "doubled channel": Case(
        "gemma4", "<|channel><|channel>thought\nhm<channel|>Hi", NONE, "Hi", "hm", "gemma4_channel"
    ),
    "empty channel": Case(
        "gemma4", "<|channel>thought<channel|>Hi", NONE, "Hi", "", "gemma4_channel"
    ),
    "a call ends a message": Case(
        "inkling",
        "<|content_thinking|>hm<|content_invoke_tool_json|>"
        '{"name": "f", "args": {"s": "a"}}<|end_message|>',
        F,
        "",
        "hm",
        "inkling",
    ),
    "half a header": Case("harmony", "<|channel|>ana", NONE, "", "", "harmony"),
    "half a header of a call": Case(
        "harmony", "<|channel|>commentary to=functions.f <|con", NONE, "", "", "harmony"
    ),
    "a header with text": Case(
        "harmony", (text := '<|channel|>final {"answer": 1}'), NONE, text, "", "harmony"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_variation(name: str) -> None:
    case = CASES[name]
    for size in (len(case.text), 1, 5):
        parser = OutputParser(case.format, case.thinks, tools=TOOLS, inside=case.inside)
        pieces = [case.text[start : start + size] for start in range(0, len(case.text), size)]
        output = fold_spans(parse_pieces(parser, pieces))
        calls = [(call, json.loads(arguments)) for call, arguments in output.raw_calls]
        assert (calls, output.text, output.reasoning) == (case.calls, case.content, case.reasoning)
