"""No text of a client becomes a special token, wherever it stands in the conversation."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.engines.llamacpp import gguf
from dragoman.prompt import special_tokens
from dragoman.prompt.renderer import PromptRenderer, RenderedPrompt
from dragoman.prompt.special_tokens import (
    BREAK,
    FOLDING_LETTERS,
    PROMPT_END,
    SLICE,
    SpecialTokenGuard,
    iterate_matches,
    make_trie_pattern,
    remove_breaks,
)
from dragoman.tokenizers import tokenizer
from dragoman.types import Chat, Message, Tool, ToolCall, make_text_content
from tests.support.paths import TESTS
from tests.support.recording_tokenizer import FIRST_SPECIAL, RecordingTokenizer

HERE = TESTS
AGENT = (HERE / "templates" / "agent.jinja").read_text()
REAL = HERE.parent.parent / "shared" / "exam" / "templates"


def render(renderer: PromptRenderer, chat: Chat) -> RenderedPrompt:
    return asyncio.run(renderer.render(chat))


def user(text: str) -> Chat:
    return Chat(messages=(Message(role="user", content=make_text_content(text)),))


def specials_of(rendered: RenderedPrompt) -> list[int]:
    return [token for token in rendered.ids or () if token >= FIRST_SPECIAL]


FIELDS = ("system", "user", "assistant", "result", "name", "reasoning", "tool", "about", "key",
          "value", "call", "id", "argument", "argument_key", "document", "title")  # fmt: skip


def conversation(**texts: str) -> Chat:
    """A conversation with a text of the client's in every possible place."""

    def get(field: str) -> str:
        return texts.get(field, f"plain {field}")

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
            Message(role="system", content=make_text_content(get("system"))),
            Message(role="user", content=make_text_content(get("user")), name=get("name")),
            Message(
                role="assistant",
                content=make_text_content(answer),
                reasoning=reasoning,
                tool_calls=(call,),
            ),
            Message(role="tool", content=make_text_content(get("result")), tool_call_id=get("id")),
        ),
        tools=(Tool(name=get("tool"), description=get("about"), parameters=schema),),
        template_kwargs={
            "documents": [{"title": get("title"), "text": get("document")}],
            "enable_thinking": True,
        },
    )


@pytest.fixture(scope="module")
def default_tokenizer(default_model: Path) -> tokenizer.AnyTokenizer:
    own = tokenizer.tokenizer_from_gguf(gguf.read_header(default_model).metadata)
    assert own is not None
    return own


def test_security_row_9_no_special_token_comes_from_a_client(
    default_tokenizer: tokenizer.AnyTokenizer,
) -> None:
    renderer = PromptRenderer(AGENT, default_tokenizer)
    special = set(default_tokenizer.specials.values())

    def render_specials(chat: Chat) -> tuple[list[int], str]:
        rendered = render(renderer, chat)
        assert rendered.ids is not None
        assert default_tokenizer.decode(rendered.ids) == rendered.text
        return [token for token in rendered.ids if token in special], rendered.text

    plain, text = render_specials(conversation())
    assert all(f"plain {field}" in text for field in FIELDS)
    for token in default_tokenizer.specials:
        for field in FIELDS:
            forged = f"x{token}{token} y"
            ids, text = render_specials(conversation(**{field: forged}))
            assert (ids, forged in text) == (plain, True), (token, field)
        for cut in (len(token) // 2, 1, len(token) - 1):
            halves = (token[:cut], token[cut:])
            texts = {field: halves[index % 2] for index, field in enumerate(FIELDS)}
            assert render_specials(conversation(**texts))[0] == plain, (token, halves)
            texts = dict.fromkeys(FIELDS, halves[1] + "plain" + halves[0])
            assert render_specials(conversation(**texts))[0] == plain, (token, halves)


def test_security_row_9_in_the_default_models_own_template(
    default_model: Path, default_tokenizer: tokenizer.AnyTokenizer
) -> None:
    template = gguf.read_header(default_model).metadata["tokenizer.chat_template"]
    renderer = PromptRenderer(template, default_tokenizer)
    special = set(default_tokenizer.specials.values())
    expected: list[int] | None = None
    for token in ("harmless", *default_tokenizer.specials):
        for text in (token, token * 2, f"{token[1:]} {token} {token[:-1]}"):
            texts = dict.fromkeys(("system", "user", "assistant", "result", "call"), text)
            rendered = render(renderer, Chat(messages=conversation(**texts).messages))
            ids = [id_ for id_ in rendered.ids or () if id_ in special]
            expected = expected or ids
            assert ids == expected, token
            assert rendered.text.count(text) >= len(texts)


def test_special_tokens_cannot_form_between_template_and_client() -> None:
    tokens = RecordingTokenizer("<s>", "</s>", "<think>", "</think>", "<|user|>", "[INST]")
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
            rendered = render(PromptRenderer(template, tokens), user(text))
            assert specials_of(rendered) == [], (template, text)
            assert BREAK not in rendered.text
            assert BREAK.encode() not in bytes(rendered.ids or [])


def test_our_own_code_points_are_removed() -> None:
    for text in (f"a{BREAK}b{PROMPT_END}c", f"<{BREAK}s>{PROMPT_END}"):
        rendered = render(
            PromptRenderer("{{ messages[0].content }}", RecordingTokenizer("<s>", "</s>")),
            user(text),
        )
        assert rendered.text == text.replace(BREAK, "").replace(PROMPT_END, "")
        assert specials_of(rendered) == []


def test_special_tokens_that_the_template_composes_are_still_read() -> None:
    tokens = RecordingTokenizer("<s>", "</s>", "<|user|>", "<|assistant|>")
    template = (
        "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content ~ (m.name or '') }}{% endfor %}"
    )
    chat = Chat(
        messages=(
            Message(role="user", content=make_text_content("user")),
            Message(role="assistant", content=make_text_content("a"), name="user"),
        )
    )
    rendered = render(PromptRenderer(template, tokens), chat)
    assert specials_of(rendered) == [FIRST_SPECIAL + 2, FIRST_SPECIAL + 3]
    assert rendered.text == "<|user|>user<|assistant|>auser"


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="the real templates are missing")
def test_no_special_token_comes_from_a_client_in_real_templates() -> None:
    pattern = re.compile(r"<\|[^\s<>|{}]+\|>|<｜[^\s<>{}]+｜>|\[/?[A-Z_]{3,}\]|</?[a-z_:]{2,}>")
    attempts = templates = 0
    for path in sorted(REAL.glob("*/*.jinja")):
        text = path.read_text()
        tokens = sorted(set(pattern.findall(text)))
        if not tokens:
            continue
        renderer = PromptRenderer(text, RecordingTokenizer("<s>", "</s>", *tokens))
        plain = specials_of(render(renderer, drop_unrendered_tools(renderer, conversation())))
        for token in ("<s>", *tokens):
            forged = dict.fromkeys(FIELDS, f"x{token} y")
            chat = drop_unrendered_tools(renderer, conversation(**forged))
            assert specials_of(render(renderer, chat)) == plain, (path.name, token)
            attempts += len(forged)
        templates += 1
    assert templates >= 30
    assert attempts > 5000


def drop_unrendered_tools(renderer: PromptRenderer, chat: Chat) -> Chat:
    tools = chat.tools if renderer.capabilities.tools_rendered else ()
    return Chat(messages=chat.messages, tools=tools)


SPECIAL = ["<s>", "<|im_end|>", "<|im_start|>", "[INST]", "ab<", "<ab"]
PIECES = st.lists(
    st.sampled_from([*SPECIAL, "<", ">", "|", "im_end", "a", "b", " ", "\\ufdd0", BREAK])
)


@settings(max_examples=300)
@given(PIECES, PIECES, st.booleans())
def test_broken_texts_contain_no_special_token_and_clean_up_to_the_same(
    left: list[str], right: list[str], ignore_case: bool
) -> None:
    guard = SpecialTokenGuard(SPECIAL, separators=["im_"], ignore_case=ignore_case)
    first, second = "".join(left), "".join(right)
    broken = guard.break_tokens(first) + guard.break_tokens(second)
    assert len(guard.split(broken)) == 1
    assert len(guard.split(broken.replace("im_", ""))) == 1
    assert remove_breaks(broken) == (first + second).replace(BREAK, "").replace(PROMPT_END, "")


@settings(max_examples=300)
@given(PIECES, st.integers(1, 12), st.booleans())
def test_long_texts_are_searched_in_slices_with_the_same_result(
    pieces: list[str], size: int, ignore_case: bool
) -> None:
    guard = SpecialTokenGuard(SPECIAL, separators=["im_"], ignore_case=ignore_case)
    text = "".join(pieces)
    broken = guard.break_tokens(text)

    def read() -> list[object]:
        visible = guard.break_visibly(text)
        return [guard.break_tokens(text), guard.split(text), remove_breaks(broken), visible]

    whole = read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(special_tokens, "SLICE", size)
        assert read() == whole


def test_no_search_holds_the_interpreter_for_more_than_a_slice() -> None:
    """Other threads run between two searches: each begins and ends within a slice."""
    searched: list[int] = []

    class Pattern:
        def finditer(self, text: str, start: int, end: int) -> Iterator[re.Match[str]]:
            searched.append(min(end, len(text)) - start)
            return iter(())

    text = "a" * (10 * SLICE + 7)
    assert [*iterate_matches(Pattern(), text, 5)] == []  # type: ignore[arg-type]
    assert sum(searched) == len(text) + 5 * 10
    assert max(searched) == SLICE + 5


def test_many_special_tokens() -> None:
    words = [f"<unused{number}>" for number in range(3000)] + ["<a", "<ab", "<abc>"]
    pattern = re.compile(make_trie_pattern(words))
    assert all(pattern.fullmatch(word) for word in words)
    assert pattern.match("<abc>d")[0] == "<abc>"  # type: ignore[index]
    assert pattern.match("<unused3000>") is None
    assert SpecialTokenGuard(words).split("x<unused12>y") == ["x", "<unused12>", "y"]


def test_letters_that_become_plain_letters_in_another_case() -> None:
    def becomes_plain(letter: str) -> bool:
        changed = letter.lower() + letter.upper() + letter.casefold()
        return any(character < "\x80" for character in changed)

    assert "".join(filter(becomes_plain, map(chr, range(0x80, 0x30000)))) == FOLDING_LETTERS
