"""No text of a client's becomes a special token, whatever it is and wherever it stands."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.engines.llamacpp import gguf
from dragoman.prompt.renderer import PromptRenderer, RenderedPrompt
from dragoman.prompt.special_tokens import (
    BREAK,
    FOLDING_LETTERS,
    PROMPT_END,
    SpecialTokenGuard,
    remove_breaks,
    trie_pattern,
)
from dragoman.tokenizers import tokenizer
from dragoman.types import Chat, Message, Tool, ToolCall, text_content
from tests.support.bytes_tokenizer import FIRST, Bytes
from tests.support.paths import TESTS

HERE = TESTS
AGENT = (HERE / "templates" / "agent.jinja").read_text()
REAL = HERE.parent.parent / "shared" / "exam" / "templates"


def render(prompter: PromptRenderer, asked: Chat) -> RenderedPrompt:
    return asyncio.run(prompter.render(asked))


def user(text: str) -> Chat:
    return Chat(messages=(Message(role="user", content=text_content(text)),))


def specials_of(rendered: RenderedPrompt) -> list[int]:
    return [token for token in rendered.ids or () if token >= FIRST]


FIELDS = ("system", "user", "assistant", "result", "name", "reasoning", "tool", "about", "key",
          "value", "call", "id", "argument", "argument_key", "document", "title")  # fmt: skip


def story(**said: str) -> Chat:
    """A conversation with something of the client's in every place there is."""

    def get(field: str) -> str:
        return said.get(field, f"plain {field}")

    schema = {"type": "object", "properties": {get("key"): {"enum": [get("value")]}}}
    call = ToolCall(
        id=get("id"),
        name=get("call"),
        arguments=json.dumps(
            {get("argument_key"): get("argument"), "nested": [get("argument")]}, ensure_ascii=False
        ),
    )
    answer, reasoning = get("assistant"), get("reasoning")
    return Chat(
        messages=(
            Message(role="system", content=text_content(get("system"))),
            Message(role="user", content=text_content(get("user")), name=get("name")),
            Message(
                role="assistant",
                content=text_content(answer),
                reasoning=reasoning,
                tool_calls=(call,),
            ),
            Message(role="tool", content=text_content(get("result")), tool_call_id=get("id")),
        ),
        tools=(Tool(name=get("tool"), description=get("about"), parameters=schema),),
        template_kwargs={
            "documents": [{"title": get("title"), "text": get("document")}],
            "enable_thinking": True,
        },
    )


@pytest.fixture(scope="module")
def default_tokenizer(default_model: Path) -> tokenizer.AnyTokenizer:
    found = tokenizer.tokenizer_from_gguf(gguf.read_header(default_model).metadata)
    assert found is not None
    return found


def test_security_row_9_no_special_token_comes_from_a_client(
    default_tokenizer: tokenizer.AnyTokenizer,
) -> None:
    prompter = PromptRenderer(AGENT, default_tokenizer)
    special = set(default_tokenizer.specials.values())
    marks = [*default_tokenizer.specials]

    def shape(asked: Chat) -> tuple[list[int], str]:
        rendered = render(prompter, asked)
        assert rendered.ids is not None
        assert default_tokenizer.decode(rendered.ids) == rendered.text
        return [token for token in rendered.ids if token in special], rendered.text

    plain, text = shape(story())
    assert all(f"plain {field}" in text for field in FIELDS)
    for mark in marks:
        for field in FIELDS:
            forged = f"x{mark}{mark} y"
            found, text = shape(story(**{field: forged}))
            assert (found, forged in text) == (plain, True), (mark, field)
        middle = len(mark) // 2
        for halves in ((mark[:middle], mark[middle:]), (mark[:1], mark[1:]), (mark[:-1], mark[-1])):
            said = {field: halves[at % 2] for at, field in enumerate(FIELDS)}
            assert shape(story(**said))[0] == plain, (mark, halves)
            said = dict.fromkeys(FIELDS, halves[1] + "plain" + halves[0])
            assert shape(story(**said))[0] == plain, (mark, halves)


def test_security_row_9_in_the_default_models_own_template(
    default_model: Path, default_tokenizer: tokenizer.AnyTokenizer
) -> None:
    template = gguf.read_header(default_model).metadata["tokenizer.chat_template"]
    prompter = PromptRenderer(template, default_tokenizer)
    special = set(default_tokenizer.specials.values())
    wanted: list[int] | None = None
    for mark in ("harmless", *default_tokenizer.specials):
        for text in (mark, mark * 2, f"{mark[1:]} {mark} {mark[:-1]}"):
            said = dict.fromkeys(("system", "user", "assistant", "result", "call"), text)
            rendered = render(prompter, Chat(messages=story(**said).messages))
            found = [token for token in rendered.ids or () if token in special]
            wanted = wanted or found
            assert found == wanted, mark
            assert rendered.text.count(text) >= len(said)


def test_marks_cannot_form_between_template_and_client() -> None:
    cutter = Bytes("<s>", "</s>", "<think>", "</think>", "<|user|>", "[INST]")
    cases = {
        "{{ '<' ~ messages[0].content ~ '>' }}": ["think", " think ", "s", "/think", "|user|"],
        "{{ '<' ~ messages[0].content }}": ["think>", " think>", "s>"],
        "{{ messages[0].content ~ '>' }}": ["<think", "<think ", "</s"],
        "{{ '<' ~ messages[0].content|trim }}": ["  think>"],
        "{{ messages[0].content.replace('XX', '') }}": ["<thXXink>", "<XX/s>", "XX<s>XX"],
        "{{ messages[0].content.split('##')|join }}": ["<thi##nk>", "<##s##>"],
        "{{ messages[0].content|upper }}": ["[inst]", "[in\u017ft]", "[in\ufb06]"],
        "{{ '<' ~ messages[0].content|lower }}": ["THINK>", "\u017f>"],
        "{{ messages[0].content|lower }}": ["<THIN\u212a>", "<S>"],
        "{{ messages[0].content ~ messages[0].content }}": ["think><", ">[INST][INS"],
        "{{ messages[0].content|tojson(ensure_ascii=true) }}": ["<think>"],
        "{{ [messages[0].content] }}": ["<think>", "\\ufdd0<s>"],
        "{{ messages }}": ["<think>"],
        "{{ messages[0].content|map('string')|join }}": ["<think>"],
    }  # fmt: skip
    for template, texts in cases.items():
        for text in texts:
            rendered = render(PromptRenderer(template, cutter), user(text))
            assert specials_of(rendered) == [], (template, text)
            assert BREAK not in rendered.text
            assert BREAK.encode() not in bytes(rendered.ids or [])


def test_our_own_code_points_are_taken_out() -> None:
    for text in (f"a{BREAK}b{PROMPT_END}c", f"<{BREAK}s>{PROMPT_END}"):
        rendered = render(
            PromptRenderer("{{ messages[0].content }}", Bytes("<s>", "</s>")), user(text)
        )
        assert rendered.text == text.replace(BREAK, "").replace(PROMPT_END, "")
        assert specials_of(rendered) == []


def test_marks_that_the_template_composes_are_still_read() -> None:
    cutter = Bytes("<s>", "</s>", "<|user|>", "<|assistant|>")
    template = (
        "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content ~ (m.name or '') }}{% endfor %}"
    )
    asked = Chat(
        messages=(
            Message(role="user", content=text_content("user")),
            Message(role="assistant", content=text_content("a"), name="user"),
        )
    )
    rendered = render(PromptRenderer(template, cutter), asked)
    assert specials_of(rendered) == [FIRST + 2, FIRST + 3]
    assert rendered.text == "<|user|>user<|assistant|>auser"


@pytest.mark.skipif(not REAL.is_dir(), reason="the real templates are not here")
def test_b11_no_special_token_comes_from_a_client_in_real_templates() -> None:
    found = re.compile(r"<\|[^\s<>|{}]+\|>|<｜[^\s<>{}]+｜>|\[/?[A-Z_]{3,}\]|</?[a-z_:]{2,}>")
    tried = templates = 0
    for path in sorted(REAL.glob("*/*.jinja")):
        text = path.read_text()
        marks = sorted(set(found.findall(text)))
        if not marks:
            continue
        prompter = PromptRenderer(text, Bytes("<s>", "</s>", *marks))
        plain = specials_of(render(prompter, fitting(prompter, story())))
        for mark in ("<s>", *marks):
            forged = dict.fromkeys(FIELDS, f"x{mark} y")
            asked = fitting(prompter, story(**forged))
            assert specials_of(render(prompter, asked)) == plain, (path.name, mark)
            tried += len(forged)
        templates += 1
    assert templates >= 30
    assert tried > 5000


def fitting(prompter: PromptRenderer, asked: Chat) -> Chat:
    """Without what the template has no place for."""
    tools = asked.tools if prompter.capabilities.tools_rendered else ()
    return Chat(messages=asked.messages, tools=tools)


SPECIAL = ["<s>", "<|im_end|>", "<|im_start|>", "[INST]", "ab<", "<ab"]
PIECES = st.lists(
    st.sampled_from([*SPECIAL, "<", ">", "|", "im_end", "a", "b", " ", "\\ufdd0", BREAK])
)


@settings(max_examples=300, deadline=None)
@given(PIECES, PIECES, st.booleans())
def test_broken_texts_read_the_same_and_hold_no_mark(
    one: list[str], two: list[str], folds: bool
) -> None:
    guard = SpecialTokenGuard(SPECIAL, separators=["im_"], ignore_case=folds)
    first, second = "".join(one), "".join(two)
    broken = guard.break_tokens(first) + guard.break_tokens(second)
    assert len(guard.split(broken)) == 1
    assert len(guard.split(broken.replace("im_", ""))) == 1
    assert remove_breaks(broken) == (first + second).replace(BREAK, "").replace(PROMPT_END, "")


def test_many_special_tokens() -> None:
    words = [f"<unused{number}>" for number in range(3000)] + ["<a", "<ab", "<abc>"]
    pattern = re.compile(trie_pattern(words))
    assert all(pattern.fullmatch(word) for word in words)
    assert pattern.match("<abc>d")[0] == "<abc>"  # type: ignore[index]
    assert pattern.match("<unused3000>") is None
    assert SpecialTokenGuard(words).split("x<unused12>y") == ["x", "<unused12>", "y"]


def test_letters_that_turn_into_plain_ones() -> None:
    def turns(letter: str) -> bool:
        return any(one < "\x80" for one in letter.lower() + letter.upper() + letter.casefold())

    assert "".join(filter(turns, map(chr, range(0x80, 0x30000)))) == FOLDING_LETTERS
