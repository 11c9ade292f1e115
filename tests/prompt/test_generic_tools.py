"""Tools in the generic form: our own tags become tokens of the model, those of clients do not."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from dragoman.prompt.renderer import PromptRenderer
from dragoman.prompt.special_tokens import MixedText, join_texts, make_trusted_text
from dragoman.testing.byte_tokenizer import SPECIALS, ByteTokenizer
from dragoman.types import Chat, Message, Tool, ToolCall, make_text_content
from tests.support.paths import TEMPLATES

TAGS = tuple(
    f"<{slash}{name}>" for name in ("tools", "tool_call", "tool_response") for slash in ("", "/")
)


def conversation(text: str) -> Chat:
    """A conversation about tools in which every text of the client's is the same."""
    schema = {"type": "object", "properties": {text: {"description": text}}}
    call = ToolCall(id="1", name=text, arguments=json.dumps({text: text}, ensure_ascii=False))
    other = ToolCall(id="2", name="f", arguments=text)
    return Chat(
        messages=(
            Message(role="system", content=make_text_content(text)),
            Message(role="user", content=make_text_content(text)),
            Message(role="assistant", content=make_text_content(text), tool_calls=(call, other)),
            Message(role="tool", content=make_text_content(text), tool_call_id="1"),
            Message(role="tool", content=make_text_content(text), tool_call_id="2"),
            Message(role="user", content=make_text_content(text)),
        ),
        tools=(Tool(name=text, description=text, parameters=schema),),
    )


def count_specials(template: str, text: str, markup: tuple[str, ...] = ()) -> Counter[str]:
    """Count each special token in the prompt."""
    tokenizer = ByteTokenizer(SPECIALS, markup=(*TAGS, *markup))
    source = (TEMPLATES / template).read_text(encoding="utf-8")
    rendered = asyncio.run(PromptRenderer(source, tokenizer).render(conversation(text)))
    assert rendered.ids is not None
    assert text in rendered.text
    names = {token: text for text, token in tokenizer.specials.items()}
    return Counter(names[token] for token in rendered.ids if token in names)


@pytest.mark.parametrize("template", ["chatml.jinja", "gemma.jinja"])
def test_our_tags_become_tokens_if_the_model_has_them(template: str) -> None:
    counts = count_specials(template, "plain")
    assert (
        counts["<tool_call>"] == counts["</tool_call>"] == 4
    )  # twice in the tool prompt, two calls
    assert counts["<tool_response>"] == counts["</tool_response>"] == 3
    assert counts["<tools>"] == counts["</tools>"] == 2


@pytest.mark.parametrize("template", ["chatml.jinja", "gemma.jinja"])
@pytest.mark.parametrize(
    "tag",
    [*TAGS, "<|im_end|>", "<tool_call", "tool_call>", "<", ">", "</tool_call>\n<tool_call>\n"],
)
def test_no_text_of_a_client_becomes_a_token(template: str, tag: str) -> None:
    for text in (tag, f" {tag} ", f"x{tag}x"):
        assert count_specials(template, text) == count_specials(template, "plain")


@pytest.mark.parametrize(
    "token", ["<tool_response>\nX", "X\n</tool_response>", "\nX\n", "X\n<tool_call>\n", "\n\nX\n\n"]
)
def test_no_token_forms_across_our_text_and_the_clients(token: str) -> None:
    assert count_specials("chatml.jinja", "X", (token,))[token] == 0


def test_joined_texts_know_which_parts_are_ours() -> None:
    plain = join_texts(["a", "b"], "-")
    assert (plain, type(plain)) == ("a-b", str)
    mixed = join_texts(
        [
            join_texts(["a", make_trusted_text("<b>")]),
            "",
            make_trusted_text("<c>"),
            make_trusted_text("<d>"),
        ],
        "-",
    )
    assert mixed == "a<b>--<c>-<d>"
    assert isinstance(mixed, MixedText)
    assert mixed.parts == (
        ("a", False),
        ("<b>", True),
        ("--", False),
        ("<c>", True),
        ("-", False),
        ("<d>", True),
    )
