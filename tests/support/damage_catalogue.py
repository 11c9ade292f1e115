"""The ways in which models damage a call: each function returns the text of the damaged call."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import TypeAlias

from dragoman.output.spec import (
    GAP,
    JsonObjects,
    NamedObject,
    PythonCalls,
    TaggedArguments,
    ToolFormat,
)
from tests.support.answers import WrittenCall

ENDS_OF_TURN = ("<|im_end|>", "</s>", "<|eot_id|>", "<|end_of_text|>")

Damage: TypeAlias = Callable[[WrittenCall, ToolFormat, Random], str]


def replace_match(match: re.Match[str] | None, call: WrittenCall, new: str) -> str:
    """Return the text of a call with a part of its body replaced."""
    if match is None:
        return call.text
    body = call.body[: match.start()] + new + call.body[match.end() :]
    return call.opening + body + call.closing


def pick(pattern: str, text: str, random: Random) -> re.Match[str] | None:
    found = list(re.finditer(pattern, text))
    return random.choice(found) if found else None


def edit(pattern: str, replacement: str) -> Damage:
    """Replace one match of a pattern in the body of a call."""

    def run(call: WrittenCall, _: ToolFormat, random: Random) -> str:
        match = pick(pattern, call.body, random)
        return replace_match(match, call, "" if match is None else match.expand(replacement))

    return run


def edit_tag(change: Callable[[str], str]) -> Damage:
    """Change one of the markers inside the body of a call."""

    def run(call: WrittenCall, tool_format: ToolFormat, random: Random) -> str:
        markers = list_inner_markers(tool_format)
        if not markers:
            return call.text
        match = pick("|".join(map(re.escape, markers)), call.body, random)
        return replace_match(match, call, "" if match is None else change(match[0]))

    return run


def list_inner_markers(tool_format: ToolFormat) -> list[str]:
    markers: list[str] = []
    for body in tool_format.bodies:
        if isinstance(body, TaggedArguments):
            for pair in (body.key, body.value):
                markers += [*pair.open, *pair.close]
        elif isinstance(body, NamedObject):
            markers += [*body.string_markers, *body.name_ends]
    return [marker.replace(GAP, "") for marker in markers if len(marker) > 3]


def edit_inner_close(change: Callable[[str], str]) -> Damage:
    """Change the tag that closes a key or a value."""

    def run(call: WrittenCall, tool_format: ToolFormat, random: Random) -> str:
        tags = [marker for marker in list_inner_markers(tool_format) if marker.startswith("</")]
        if not tags:
            return call.text
        match = pick("|".join(map(re.escape, tags)), call.body, random)
        return replace_match(match, call, "" if match is None else change(match[0]))

    return run


def add_space_before_name(call: WrittenCall, _: ToolFormat, random: Random) -> str:
    match = pick(rf"(?<![.\w]){call.name}\b", call.body, random)
    return replace_match(match, call, random.choice((" ", "\n")) + call.name)


def edit_name(*spellings: str) -> Damage:
    def run(call: WrittenCall, _: ToolFormat, random: Random) -> str:
        match = pick(rf"(?<![.\w]){call.name}\b", call.body, random)
        return replace_match(match, call, random.choice(spellings).format(call.name))

    return run


def add_empty_call(call: WrittenCall, tool_format: ToolFormat, _: Random) -> str:
    if tool_format.header is not None or not (call.opening and call.closing):
        return call.text
    return f"{call.opening}{call.closing}\n{call.text}"


def end_turn_after_call(call: WrittenCall, tool_format: ToolFormat, random: Random) -> str:
    token = random.choice([end for end in ENDS_OF_TURN if end not in tool_format.section.close])
    before, after = random.choice(((token, ""), ("", token), (token, token)))
    return call.opening + call.body + before + call.closing + after


def edit_closing(change: Callable[[str, Random], str]) -> Damage:
    return lambda call, _, random: call.opening + call.body + change(call.closing, random)


def cut_text(text: str, random: Random) -> str:
    return text[: random.randrange(1, max(2, len(text)))]


def close_early(call: WrittenCall, _: ToolFormat, random: Random) -> str:
    position = random.randrange(len(call.body) * 2 // 3, len(call.body))
    return call.opening + call.body[:position] + call.closing


def cut_call(call: WrittenCall, _: ToolFormat, random: Random) -> str:
    """End the call anywhere; the next one follows, or nothing."""
    text = call.opening + call.body
    return text[: random.randrange(1, len(text))]


def move_name(call: WrittenCall, *_: object) -> str:
    """Write the name before the opening marker, where it is the first word of the call."""
    if not call.body.startswith(call.name):
        return call.text
    return call.name + call.opening + call.body[len(call.name) :] + call.closing


def insert(choices: tuple[str, ...]) -> Damage:
    """Insert a text around the body of a call, or after the call."""

    def run(call: WrittenCall, tool_format: ToolFormat, random: Random) -> str:
        closing = tool_format.section.close  # the format's own markers are no damage
        piece = random.choice([choice for choice in choices if choice not in closing])
        return random.choice(
            (
                call.opening + piece + call.body + call.closing,
                call.opening + call.body + piece + call.closing,
                call.text + piece,
            )
        )

    return run


def double_opening(call: WrittenCall, tool_format: ToolFormat, _: Random) -> str:
    return call.text if tool_format.header is not None else call.opening + call.text


def add_fence(call: WrittenCall, *_: object) -> str:
    """Put the body into a code block, where the call has markers of its own."""
    if not call.opening:
        return call.text
    return f"{call.opening}```json\n{call.body}\n```{call.closing}"


def edit_json(change: Callable[[str, Random], str]) -> Damage:
    """Change the arguments of a call, where they are one JSON object."""

    def run(call: WrittenCall, _: ToolFormat, random: Random) -> str:
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        if arguments not in call.body:
            return call.text
        body = call.body.replace(arguments, change(arguments, random))
        return call.opening + body + call.closing

    return run


def edit_object(change: Callable[[str, str], str]) -> Damage:
    """Change the object of a call between markers; `change` also gets its name."""

    def run(call: WrittenCall, tool_format: ToolFormat, _: Random) -> str:
        body = tool_format.bodies[0]
        is_object = isinstance(body, JsonObjects) and not (body.keyed or body.python)
        if not is_object or not call.opening or not call.body.startswith("{"):
            return call.text
        return call.opening + change(call.body, call.name) + call.closing

    return run


def replace_one(pattern: str, *replacements: str) -> Callable[[str, Random], str]:
    """Replace one match of a pattern in a text."""

    def run(text: str, random: Random) -> str:
        match = pick(pattern, text, random)
        if match is None:
            return text
        new = match.expand(random.choice(replacements))
        return text[: match.start()] + new + text[match.end() :]

    return run


def misspell(marker: str) -> str:
    middle = len(marker) // 2
    return marker[:middle] + marker[middle + 1 :]


def add_comment(call: WrittenCall, tool_format: ToolFormat, random: Random) -> str:
    """Add a comment before an argument, where arguments are JSON or Python."""
    if isinstance(tool_format.bodies[0], PythonCalls):
        return edit(r", (?=\w+=)", ", # why\n")(call, tool_format, random)
    comment = replace_one(r'(?<=[,{])(?=\s*")', "// why\\n", " /* why */ ", "# why\\n")
    return edit_json(comment)(call, tool_format, random)


def open_list(call: WrittenCall, tool_format: ToolFormat, random: Random) -> str:
    """Open a list before the arguments; without any marker, such text is no call."""
    if tool_format.unmarked_at_start or (
        tool_format.unmarked_starts and not tool_format.section.close
    ):
        return call.text
    return edit_json(lambda text, _: f"[{text}")(call, tool_format, random)


DAMAGES: dict[str, Damage] = {
    "none": lambda call, *_: call.text,
    "bracket dropped": edit(r"[{}\[\]()]", ""),
    "bracket doubled": edit(r"([{}\[\]()])", r"\1\1"),
    "bracket wrong": edit(r"[}\])]", "$"),
    "quote dropped": edit(r"[\"']", ""),
    "quote doubled": edit(r"([\"'])", r"\1\1"),
    "comma dropped": edit(r",", ""),
    "comma doubled": edit(r",", ",,"),
    "colon dropped": edit(r"[:=]", ""),
    "quotes inside": edit(r"(?<=[\"'])([A-Z][a-z]+)(?=[\"'])", r'\1 "is" it'),
    "key unquoted": edit(r"[\"'](\w+)[\"']\s*:", r"\1:"),
    "fence": add_fence,
    "open doubled": double_opening,
    "open missing": lambda call, *_: call.body + call.closing,
    "value unquoted": edit(r"(?<=[:=])(\s*)[\"']([A-Z]\w+)[\"']", r"\1\2"),
    "value missing": edit(r"(?<=[:=])\s*(?:[\"'][^\"']*[\"']|\d+|[Tt]rue|[Ff]alse)", ""),
    "last brackets dropped": edit(r"[}\])]+\s*$", ""),
    "tag dropped": edit_tag(lambda _: ""),
    "tag doubled": edit_tag(lambda tag: tag + tag),
    "tag misspelt": edit_tag(misspell),
    "tag cut": edit_tag(lambda tag: tag[: len(tag) // 2]),
    "close missing": edit_closing(lambda *_: ""),
    "close doubled": edit_closing(lambda close, _: close + close),
    "close cut": edit_closing(cut_text),
    "close early": close_early,
    "cut": cut_call,
    "name before the marker": move_name,
    "end of reasoning": insert(("</think>",)),
    "line ends of Windows": lambda call, *_: call.text.replace("\n", "\r\n"),
    "space": insert((" ", "\n", "  \n", "\t", "\ufeff", "\u200b", "\xa0")),
    "space in arguments": edit_json(replace_one(r"(?<=[,:]) ", "\xa0", "\ufeff", "\n\t")),
    "comment": add_comment,
    "colon of an object doubled": edit_object(lambda text, _: text.replace(":", "::", 1)),
    "colon of an object missing": edit_object(lambda text, _: text.replace(":", "", 1)),
    "colon of an object wrong": edit_object(lambda text, _: text.replace(":", " =", 1)),
    "brace of an object missing": edit_object(lambda text, _: text[1:]),
    "name unquoted": edit_object(lambda text, name: text.replace(f'"{name}"', name, 1)),
    "quote of the name missing": edit_object(lambda text, name: text.replace(f'{name}"', name, 1)),
    "arrows": edit_json(lambda text, _: text.replace('":', '" =>')),
    "separators of full width": edit_json(
        lambda text, _: text.replace('":', '"\uff1a').replace('",', '"\uff0c')
    ),
    "curly quotes around all": edit_json(
        lambda text, _: re.sub(r'"([^"]*)"', "\u201c\\1\u201d", text)
    ),
    "three quotes": edit(r"(?<=[:=])(\s*)([\"'])([A-Z][\w ]+)[\"']", r"\1\2\2\2\3\2\2\2"),
    "arguments in quotes": edit_json(lambda text, _: f'"{text}"'),
    "address unquoted": edit_json(
        replace_one(r'(?<=: )"([A-Z]\w+)"(?=[,}])', r"http://\1.org/12:30")
    ),
    "call in the arguments": edit_json(replace_one(r'(?<=: )"([A-Z]\w+)"(?=[,}])', r"f(\1)")),
    "colon of JSON doubled": edit_json(replace_one(r'(?<="):', "::", ": :")),
    "colon of JSON missing": edit_json(replace_one(r'(?<="): ?', " ", "")),
    "comma of JSON added": edit_json(replace_one(r'(?<=[\w"\]}])(?=[}\]])', ",", " , ")),
    "brace in arguments doubled": edit_json(replace_one(r"(?<=.)(?:{|}(?=[,\]]))", r"\g<0>\g<0>")),
    "arguments in a string": edit_json(lambda text, _: json.dumps(text)),
    "arguments in two strings": edit_json(lambda text, _: json.dumps(json.dumps(text))),
    "arguments in a list": edit_json(lambda text, _: f"[{text}]"),
    "arguments in a fence": edit_json(lambda text, _: f"```json\n{text}\n```"),
    "arguments in an open list": open_list,
    "arguments closed at once": edit_json(lambda text, _: f"{{}}{text[1:]}"),
    "brace after a comma": edit_json(replace_one(r'(?<=,)(?= ")', "}")),
    "other quote before a key": edit_json(replace_one(r'"(?=\w+":)', "'")),
    "arguments in Python": edit_json(lambda text, _: repr(json.loads(text))),
    "end of turn": insert(ENDS_OF_TURN),
    "end of turn after a call": end_turn_after_call,
    "end of turn in the arguments": edit_json(
        replace_one(r'(?<=[,{])(?=\s*")|(?<=[\w"\]}])(?=[,}])', "</s>", "<|eot_id|>")
    ),
    "space before the name": add_space_before_name,
    "commas are semicolons": edit_json(replace_one(r",", ";")),
    "words unquoted": edit(r"(?<=[:=])(\s*)[\"']((?:[A-Z]\w+ )+[A-Z]\w+)[\"']", r"\1\2"),
    "opening quote missing": edit(r"(?<=[:=])(\s*)[\"']([A-Z][\w ]+[\"'])", r"\1\2"),
    "curly quotes": edit(r"(?<=[:=])(\s*)[\"']([A-Z][\w ]+)[\"']", "\\1\u201c\\2\u201d"),
    "closing tag with space": edit_inner_close(lambda tag: tag.replace("</", "</ ")),
    "closing tag of another name": edit_inner_close(lambda _: "</value>"),
    "closing tag missing": edit_inner_close(lambda _: ""),
    "closing tag in capitals": edit_inner_close(str.upper),
    "closing tag with space at its end": edit_inner_close(lambda tag: tag.replace(">", " >")),
    "closing tag with a line break": edit_inner_close(lambda tag: tag.replace(">", "\n>")),
    "closing tag without its end": edit_inner_close(lambda tag: tag[:-1]),
    "closing tag escaped": edit_inner_close(lambda tag: tag.replace("</", "<\\/")),
    "space in the slash of a tag": edit_inner_close(lambda tag: tag.replace("</", "< /")),
    "slash of a tag doubled": edit_inner_close(lambda tag: tag.replace("</", "<//")),
    "words in the call": lambda call, *_: f"{call.opening}{call.body}\nOK then.\n{call.closing}",
    "empty call before": add_empty_call,
    "ellipsis": edit_json(lambda text, _: f"{text[:-1]}, ...}}"),
    "strings added": edit_json(
        replace_one(r'"([A-Z])(\w+)"(?=[,}\]])', r'"\1" + "\2"', r'"\1" "\2"')
    ),
    "number with a unit": edit_json(replace_one(r"(?<=: )(\d+)(?=[,}])", r"\1 days", r"\1%")),
    "number with a sign": edit_json(replace_one(r"(?<=: )(\d+)(?=[,}])", r"+\1", r"0\1")),
    "constant of JavaScript": edit_json(replace_one(r"(?<=: )\d+(?=[,}])", "NaN", "undefined")),
    "line break in a string": edit_json(replace_one(r'"([A-Z])(\w+)"(?=[,}\]])', r'"\1\n\2"')),
    "backslash before a quote": edit_json(replace_one(r'"([A-Z]\w+)"(?=[,}\]])', r'"\1\\"')),
    "backticks": edit_json(replace_one(r'"([A-Z]\w+)"(?=[,}\]])', r"`\1`")),
    "quotes of two kinds": edit_json(
        replace_one(r'"([A-Z]\w+)"(?=[,}\]])', r"""'\1""" ", r" """\1'""")
    ),
    "colon in a key": edit_json(replace_one(r'"(\w+)":', r'"\1:"', r'"\1:":')),
    "sign for a comma": edit_json(replace_one(r", (?=\")", " | ", " and ", ". ", r",\\n")),
    "sign for a colon": edit_json(replace_one(r'(?<="):', ",", " -", "")),
    "other brackets": edit_json(
        lambda text, random: random.choice(("({})", "[{}]", "<{}>")).format(text[1:-1])
    ),
    "quote of a key doubled": edit_json(replace_one(r'(\w)":', r'\1"":')),
    "arguments missing": edit_json(lambda *_: ""),
    "arguments null": edit_json(lambda *_: "null"),
    "arguments twice": edit_json(lambda text, _: text + text),
    "arguments cut": edit_json(lambda text, random: text[: random.randrange(1, len(text))]),
    "arguments without brackets": edit_json(lambda text, _: text.rstrip("}]")),
    "words before the arguments": edit_json(lambda text, _: f"OK: {text}"),
    "name in bold": edit_name("**{}**", "`{}`"),
    "name with a sign": edit_name("{}()", "{}:", "functions.{}"),
    "name repeated": edit_name("{0}.{0}", "{} "),
    "quotes of an attribute": edit(r'name="(\w+)"', r"name='\1'"),
    "attribute without quotes": edit(r'name="(\w+)"', r"name=\1"),
}
# damage after which the call is the same
REPAIRED = {"none", "close doubled", "space in arguments", "comment", "colon of JSON doubled"}
REPAIRED |= {"comma of JSON added", "arguments in a string", "arguments in two strings"}
REPAIRED |= {"arguments in a list", "arguments in a fence", "arguments in Python"}
REPAIRED |= {"open doubled", "end of turn after a call", "end of turn in the arguments"}
REPAIRED |= {"colon of an object doubled", "colon of an object wrong"}
REPAIRED |= {"colon of JSON missing", "colon of an object missing"}
REPAIRED |= {"brace of an object missing", "name unquoted", "quote of the name missing"}
REPAIRED |= {"arrows", "separators of full width", "curly quotes around all", "three quotes"}
REPAIRED |= {"arguments in quotes", "arguments in an open list"}
REPAIRED |= {"other quote before a key"}
REPAIRED |= {"space before the name", "line ends of Windows"}
REPAIRED |= {"commas are semicolons", "words unquoted", "opening quote missing", "curly quotes"}
REPAIRED |= {"closing tag in capitals", "closing tag with space at its end"}
REPAIRED |= {"closing tag with a line break", "closing tag without its end", "closing tag escaped"}
REPAIRED |= {"space in the slash of a tag", "slash of a tag doubled", "number with a sign"}
REPAIRED |= {"quote of a key doubled", "name repeated", "empty call before"}
REPAIRED |= {"quotes of an attribute", "attribute without quotes"}
REPAIRED |= {"closing tag with space", "closing tag of another name", "closing tag missing"}
# damage after which nobody can tell the text after the calls from the last one
UNENDED = {"cut"}
