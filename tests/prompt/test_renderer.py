"""From a conversation to token ids: golden prompts, one BOS, nothing cut twice."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.engines.llamacpp import gguf
from dragoman.errors import BadRequest, ModelBroken, TemplateRejected, Unsupported
from dragoman.formats import find_reasoning
from dragoman.models.output_format import OutputFormat
from dragoman.prompt import renderer as prompt
from dragoman.prompt.renderer import PromptRenderer, RenderedPrompt
from dragoman.prompt.token_cache import TokenCache
from dragoman.testing import ByteTokenizer
from dragoman.tokenizers import tokenizer
from dragoman.types import Chat, Message, Prompt, Role, Tool, ToolCall, text_content
from tests.support.bytes_tokenizer import FIRST_SPECIAL, BytesTokenizer
from tests.support.paths import TESTS

HERE = TESTS
DATA = HERE / "templates"


def source(name: str) -> str:
    return (DATA / f"{name}.jinja").read_text()


def say(role: Role, content: str | None = None, **more: Any) -> Message:
    return Message(role=role, content=text_content(content), **more)


def chat(*messages: Message, **more: Any) -> Chat:
    return Chat(messages=messages, **more)


def render(prompter: PromptRenderer, asked: Chat) -> RenderedPrompt:
    return asyncio.run(prompter.render(asked))


def specials_of(rendered: RenderedPrompt) -> list[int]:
    return [token for token in rendered.ids or () if token >= FIRST_SPECIAL]


HELLO = chat(
    say("system", "Be kind."), say("user", " Hi "), say("assistant", "Yes?"), say("user", "Bye")
)
LLAMA = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
MISTRAL = ("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
           "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")  # fmt: skip
GEMMA = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
CHATML = ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<tool_call>", "</tool_call>", "<think>",
          "</think>", "<tools>", "</tools>", "<function=")  # fmt: skip

GOLDEN = {
    "llama3": (
        LLAMA,
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nYes?<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        [0, 2, 3, 4, 2, 3, 4, 2, 3, 4, 2, 3, 4, 2, 3],
    ),
    "mistral": (
        MISTRAL,
        "<s>[INST] Hi [/INST]Yes?</s>[INST]Be kind.\n\nBye[/INST]",
        [0, 2, 3, 1, 2, 3],
    ),
    "gemma": (
        GEMMA,
        "<bos><start_of_turn>user\nBe kind.\n\n Hi<end_of_turn>\n<start_of_turn>model\nYes?"
        "<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
        [0, 2, 3, 2, 3, 2, 3, 2],
    ),
}


@pytest.mark.parametrize("add_bos", [True, False])
@pytest.mark.parametrize("name", GOLDEN)
def test_d36_golden_prompts_with_the_special_tokens_of_the_model(name: str, add_bos: bool) -> None:
    specials, text, marks = GOLDEN[name]
    cutter = BytesTokenizer(*specials, add_bos=add_bos)
    rendered = render(PromptRenderer(source(name), cutter), HELLO)
    assert rendered.text == text
    assert cutter.decode(rendered.ids or []) == text
    assert specials_of(rendered) == [FIRST_SPECIAL + mark for mark in marks]
    assert rendered.special_tokens == len(marks)


def test_d37_no_double_bos() -> None:
    for before in ("", "{{ bos_token }}", "{{ bos_token }}{{ bos_token }}"):
        prompter = PromptRenderer(
            before + "{{ messages[0].content }}", BytesTokenizer("<s>", "</s>", add_bos=True)
        )
        assert render(prompter, chat(say("user", "a"))).ids == [FIRST_SPECIAL, ord("a")]
    prompter = PromptRenderer("{{ messages[0].content }}", BytesTokenizer("<s>", "</s>"))
    assert render(prompter, chat(say("user", "a"))).ids == [ord("a")]


def test_special_tokens_that_swallow_white_space() -> None:
    cutter = BytesTokenizer(*CHATML, rstrip="<|im_end|>")
    rendered = render(PromptRenderer(source("chatml"), cutter), chat(say("user", "a")))
    assert "".join(cutter.encoded_texts) == "user\naassistant\n"
    assert rendered.text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_d40_d41_tools_calls_and_results_are_rendered() -> None:
    calls = tuple(ToolCall(id=f"call-{n}", name="f", arguments=f'{{"n": {n}}}') for n in (1, 2))
    asked = chat(
        say("user", "u"),
        say("assistant", tool_calls=calls),
        say("tool", "two", tool_call_id="call-2"),
        say("tool", "one", tool_call_id="call-1"),
        tools=(Tool(name="f", parameters={"type": "object", "properties": {"n": {}}}),),
    )
    text = render(PromptRenderer(source("agent"), BytesTokenizer(*CHATML)), asked).text
    assert '{"type": "function", "function": {"name": "f", "parameters": {"type"' in text
    assert "<tool_call>call-1 <function=f><n>1</n></function></tool_call>" in text
    assert text.index("tool f\none\n(call-1)") < text.index("tool f\ntwo\n(call-2)")
    text = render(PromptRenderer(source("chatml"), None), asked).text
    assert '<tools>\n{"type": "function", "function": {"name": "f", "parameters": ' in text
    assert '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>' in text
    assert text.index("<tool_response>\none\n") < text.index("<tool_response>\ntwo\n")


# How a prompt ends

USER, OPEN = say("user", "Count."), say("assistant", " One, <|im_end|> two,  ")
CALL = ToolCall(id="1", name="f", arguments="{}")
LAST = {"add_generation_prompt": False, "continue_final_message": True}


@pytest.mark.parametrize("name", ["chatml", "llama3", "agent", "parts"])
def test_continue_final_message_ends_right_after_its_text(name: str) -> None:
    rendered = render(
        PromptRenderer(source(name), BytesTokenizer(*CHATML)), chat(USER, OPEN, **LAST)
    )
    assert rendered.text.endswith("One, <|im_end|> two,  ")
    assert CHATML.index("<|im_end|>") + FIRST_SPECIAL not in specials_of(rendered)[-1:]


def test_continue_an_empty_message() -> None:
    rendered = render(PromptRenderer(source("chatml"), None), chat(USER, say("assistant"), **LAST))
    assert rendered.text.endswith("<|im_start|>assistant\n")


def test_without_generation_prompt() -> None:
    rendered = render(
        PromptRenderer(source("chatml"), None), chat(USER, add_generation_prompt=False)
    )
    assert rendered.text == "<|im_start|>user\nCount.<|im_end|>\n"


@pytest.mark.parametrize(
    "asked",
    [
        chat(USER, OPEN, continue_final_message=True),
        chat(OPEN, USER, **LAST),
        chat(USER, say("assistant", "a", tool_calls=(CALL,)), **LAST),
    ],
)
def test_continue_final_message_is_refused_where_it_makes_no_sense(asked: Chat) -> None:
    with pytest.raises(BadRequest) as caught:
        render(PromptRenderer(source("agent"), None), asked)
    assert caught.value.param == "continue_final_message"


def test_continue_final_message_that_the_template_drops() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    with pytest.raises(Unsupported) as caught:
        render(PromptRenderer(source, None), chat(USER, OPEN, **LAST))
    assert caught.value.param == "continue_final_message"


OPENING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking %}START\n"
    "{% elif enable_thinking is defined %}START\n\nEND\n\n{% endif %}{% endif %}"
)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", ["think", "mistral_think", "kimi_dev_think"])
@pytest.mark.parametrize(
    "text", ["hi", "START", "what does START mean?", "START END", "END", "START\n"]
)
def test_d45_d46_only_the_template_decides_where_an_answer_starts(
    name: str, text: str, special: bool
) -> None:
    """A user who mentions the marks, whatever they are made of, does not flip the state."""
    marks = find_reasoning(name)
    start, end = marks.open[0], marks.close[0]
    source = OPENING.replace("START", start).replace("END", end)
    known = ("<|im_start|>", "<|im_end|>", *((start, end) if special else ()))
    prompter = PromptRenderer(source, ByteTokenizer(markup=known))
    said = text.replace("START", start).replace("END", end)
    output_format = OutputFormat(None, name)

    def inside(*more: Message, **chosen: Any) -> bool | None:
        settings: dict[str, Any] = {"template_kwargs": chosen} | (LAST if more else {})
        one = Chat(messages=(Message(role="user", content=text_content(said)), *more), **settings)
        rendered = asyncio.run(prompter.render(one))
        start = asyncio.run(output_format.find_answer_start(one, rendered, prompter))
        return start.in_reasoning

    assert inside(enable_thinking=True)
    assert not inside(enable_thinking=False)
    assert not inside()
    assert inside(say("assistant", f"{start}so far"))
    assert not inside(say("assistant", f"{start}so far{end}and"))
    assert not inside(say("assistant", "so far"))


@pytest.mark.parametrize(
    ("source", "opening"),
    [
        ("{{ messages[-1].content }}<end>{% if add_generation_prompt %}<a><think>{% endif %}",
         "<a><think>"),
        ("{{ messages[-1].content }}<end><a><think>", "<end><a><think>"),
        ("{{ messages[-1].content }}{{ '<think>' if add_generation_prompt else '<eos>' }}",
         "<think>"),
        ("{{ messages[-1].content }}", ""),
        ("<think>{{ messages[-1].content }}", ""),
        ("{{ messages|length }}", ""),
    ],
)  # fmt: skip
def test_openings_of_templates_of_all_kinds(source: str, opening: str) -> None:
    for text in ("hi", "think", "a <think>", "zqlast"):
        asked = chat(USER, say("user", text))
        assert asyncio.run(PromptRenderer(source, None).render_opening(asked)) == opening


def test_opening_is_what_the_template_writes_before_the_answer() -> None:
    prompter = PromptRenderer(source("agent"), None)
    thinking = chat(say("user", "<think>"), template_kwargs={"enable_thinking": False})
    assert asyncio.run(prompter.render_opening(chat(USER))) == "<|im_start|>assistant\n"
    wanted = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert asyncio.run(prompter.render_opening(thinking)) == wanted


# Variables


def test_template_kwargs() -> None:
    prompter = PromptRenderer(source("agent"), None)
    asked = chat(USER, template_kwargs={"enable_thinking": False})
    assert render(prompter, asked).text.endswith("</think>\n\n")
    for name in ("messages", "tokenize", "chat_template", "bos_token", "thinking"):
        with pytest.raises(BadRequest) as caught:
            render(prompter, chat(USER, template_kwargs={name: "x"}))
        assert caught.value.param == f"chat_template_kwargs.{name}"


def test_variables_that_some_templates_read() -> None:
    prompter = PromptRenderer(
        "{{ tool_choice }}|{{ functions }}|{{ datetime }}|{{ bos_token + '' }}", None
    )
    choice, functions, date, bos = render(prompter, chat(USER, tool_choice="required")).text.split(
        "|"
    )
    assert (choice, functions, bos) == ("required", "[]", "")
    assert date.endswith("GMT")


# What is refused


def test_d39_malformed_template_fails_when_the_model_is_loaded() -> None:
    with pytest.raises(ModelBroken):
        PromptRenderer("{% if %}", None)


def test_d39_refusal_of_the_template_says_what_it_says_without_our_marks() -> None:
    cutter = BytesTokenizer("<s>", "</s>")
    prompter = PromptRenderer("{{ raise_exception('no: ' + messages[0].content) }}", cutter)
    with pytest.raises(TemplateRejected) as caught:
        render(prompter, chat(say("user", "x<s>")))
    assert caught.value.message.endswith("no: x<s>")


@pytest.mark.parametrize("cutter", [None, BytesTokenizer("<s>", "</s>")])
@pytest.mark.parametrize("asked", [Chat(messages=()), chat(say("user", ""))])
def test_s1_8_empty_prompts_are_refused(cutter: BytesTokenizer | None, asked: Chat) -> None:
    for template in ("{{ messages[0].content if messages }}", None):
        with pytest.raises(BadRequest) as caught:
            render(PromptRenderer(template, cutter), asked)
        assert caught.value.param == "messages"


def test_deep_requests_are_refused() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(BadRequest):
        render(
            PromptRenderer("{{ documents|length }}", None),
            chat(USER, template_kwargs={"documents": deep}),
        )


def test_d42_the_request_is_not_changed() -> None:
    schema = {"type": "object", "properties": {"<s>": {"type": "string"}}}
    asked = chat(say("user", "<s>"), tools=(Tool(name="f", parameters=schema),))
    before = msgspec.json.encode(asked)
    render(PromptRenderer(source("agent"), BytesTokenizer("<s>", "</s>")), asked)
    assert msgspec.json.encode(asked) == before


# Without a template, without a tokenizer, without a chat


def test_s5_17_without_a_template_the_contents_as_they_are() -> None:
    both = chat(say("system", "s"), say("user", "a"))
    assert render(PromptRenderer(None, None), both) == RenderedPrompt("s\n\na")
    asked = chat(say("user", "a <s> b"))
    assert render(PromptRenderer(None, None), asked) == RenderedPrompt("a <s> b")
    cutter = BytesTokenizer("<s>", "</s>", add_bos=True)
    assert render(PromptRenderer(None, cutter), asked).ids == [FIRST_SPECIAL, *b"a <s> b"]
    for more in (LAST, {"template_kwargs": {"x": 1}}, {"reasoning_effort": "low"}):
        with pytest.raises(Unsupported):
            render(
                PromptRenderer(None, None), chat(say("user", "u"), say("assistant", "a"), **more)
            )
    offered = render(PromptRenderer(None, None), chat(USER, tools=(Tool(name="f"),))).text
    assert offered.startswith("# Tools\n")
    assert offered.endswith("\n\nCount.")
    none = chat(USER, tools=(Tool(name="f"),), tool_choice="none")
    assert render(PromptRenderer(None, None), none).text == "Count."


def test_counting() -> None:
    assert (
        asyncio.run(
            PromptRenderer("ab{{ messages[0].content }}", BytesTokenizer()).count_tokens(chat(USER))
        )
        == 8
    )
    with pytest.raises(Unsupported):
        asyncio.run(PromptRenderer("ab", None).count_tokens(chat(USER)))


@pytest.mark.parametrize(
    ("content", "special", "wanted"),
    [
        ("<s>a", True, [FIRST_SPECIAL, *b"<s>a"]),
        ("<s>a", False, [*b"<s>a"]),
        ([1, 257], True, [1, 257]),
        ([], True, []),
    ],
)
def test_prompts_that_are_no_chats(content: Any, special: bool, wanted: list[int]) -> None:
    prompter = PromptRenderer(None, BytesTokenizer("<s>", "</s>", add_bos=True))
    asked = Prompt(content=content, add_special_tokens=special)
    assert asyncio.run(prompter.encode_prompt(asked)) == wanted


def test_prompts_for_an_engine_without_tokenizer() -> None:
    assert asyncio.run(PromptRenderer(None, None).encode_prompt(Prompt(content="<s>a"))) == "<s>a"
    assert asyncio.run(PromptRenderer(None, None).encode_prompt(Prompt(content=[5, 10**6]))) == [
        5,
        10**6,
    ]


@pytest.mark.parametrize("ids", [[-1], [0, 258], [10**30]])
def test_token_ids_out_of_range_are_refused(ids: list[int]) -> None:
    with pytest.raises(BadRequest) as caught:
        asyncio.run(
            PromptRenderer(None, BytesTokenizer("<s>", "</s>")).encode_prompt(Prompt(content=ids))
        )
    assert caught.value.param == "prompt"


# Nothing is cut twice, and nobody waits


def test_the_next_turn_costs_its_own_length_only() -> None:
    cutter = BytesTokenizer(*CHATML)
    prompter = PromptRenderer(source("chatml"), cutter)
    turns = [say("user" if n % 2 == 0 else "assistant", f"turn {n}") for n in range(9)]
    first = render(prompter, chat(*turns[:7]))
    cutter.encoded_texts.clear()
    second = render(prompter, chat(*turns))
    assert cutter.encoded_texts == ["assistant\nturn 7", "user\nturn 8"]
    fresh = len("".join(cutter.encoded_texts))
    assert second.cached_tokens == len(second.ids or ()) - second.special_tokens - fresh
    assert first.cached_tokens < second.cached_tokens
    assert prompter.token_cache.encoded_tokens > 0


def test_same_ids_with_and_without_memory(default_model: Path) -> None:
    metadata = gguf.read_header(default_model).metadata
    cutter = tokenizer.tokenizer_from_gguf(metadata)
    template = metadata["tokenizer.chat_template"]
    warm, cold = PromptRenderer(template, cutter), PromptRenderer(template, cutter, cache_bytes=0)
    turns = [
        say("user" if n % 2 == 0 else "assistant", f"Größe {n} <|im_end|> 漢字") for n in range(8)
    ]
    for last in range(1, 9):
        one, two = render(warm, chat(*turns[:last])), render(cold, chat(*turns[:last]))
        assert one.ids == two.ids
        assert cutter is not None
        assert cutter.decode(one.ids or []) == one.text
    assert warm.token_cache.cached_tokens > 0
    assert cold.token_cache.cached_tokens == 0


def test_memory_is_bounded_and_forgets_the_oldest() -> None:
    segments = TokenCache(10_000)
    for number in range(100):
        segments.put(f"text {number}", [number])
        assert segments.get("text 0") is not None
    assert segments.size <= 10_000
    assert segments.get("text 99") == segments.get("text 99") is not None
    assert segments.get("text 1") is None
    segments.put("x" * 9000, [1])
    assert segments.get("x" * 9000) is None


def test_slow_templates_do_not_hold_up_others() -> None:
    source = "{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}"
    prompter = PromptRenderer(source, None)

    async def scenario() -> int:
        turns = 0
        slow = asyncio.create_task(prompter.render(chat(USER)))
        while not slow.done():
            await asyncio.sleep(0)
            turns += 1
        with pytest.raises(TemplateRejected):
            await slow
        return turns

    assert asyncio.run(scenario()) > 5


def test_large_conversations_are_rendered_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt, "LARGE", 150)
    prompter = PromptRenderer("{{ messages[0].content }}", None)
    seen = []
    work = prompter.render_pieces

    def watched(*args: Any) -> list[str]:
        seen.append(threading.current_thread() is threading.main_thread())
        return work(*args)

    monkeypatch.setattr(prompter, "render_pieces", watched)
    render(prompter, chat(say("user", "short")))
    render(prompter, chat(say("user", "long enough" * 10)))
    render(prompter, chat(say("user", "many"), say("assistant", "small"), say("user", "ones")))
    assert seen == [True, False, False]


@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_d37_a_prompt_begins_with_bos_only_where_the_tokenizer_says_so(
    add_bos: bool, asked: bool
) -> None:
    prompter = PromptRenderer(None, BytesTokenizer("<s>", "</s>", add_bos=add_bos))
    ids = asyncio.run(prompter.encode_prompt(Prompt(content="ab", add_special_tokens=asked)))
    assert ids == ([FIRST_SPECIAL, *b"ab"] if add_bos and asked else list(b"ab"))
