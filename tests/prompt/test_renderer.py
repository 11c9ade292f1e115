"""From a conversation to token ids: golden prompts, one BOS token, nothing encoded twice."""

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
from dragoman.prompt import renderer as renderer_module
from dragoman.prompt.renderer import PromptRenderer, RenderedPrompt
from dragoman.prompt.tokens.encoding import COUNTED_PIECES, encode_pieces
from dragoman.prompt.tokens.limit import make_limit
from dragoman.prompt.tokens.token_cache import TokenCache
from dragoman.testing import ByteTokenizer
from dragoman.tokenizers.tokenizer import tokenizer_from_gguf
from dragoman.types import Chat, Message, Prompt, Role, Tool, ToolCall, make_text_content
from tests.support.paths import TESTS
from tests.support.recording_tokenizer import FIRST_SPECIAL, RecordingTokenizer

HERE = TESTS
DATA = HERE / "templates"


def source(name: str) -> str:
    return (DATA / f"{name}.jinja").read_text()


def message(role: Role, content: str | None = None, **fields: Any) -> Message:
    return Message(role=role, content=make_text_content(content), **fields)


def make_chat(*messages: Message, **fields: Any) -> Chat:
    return Chat(messages=messages, **fields)


def render(renderer: PromptRenderer, chat: Chat) -> RenderedPrompt:
    return asyncio.run(renderer.render(chat))


def specials_of(rendered: RenderedPrompt) -> list[int]:
    return [token for token in rendered.ids or () if token >= FIRST_SPECIAL]


HELLO = make_chat(
    message("system", "Be kind."),
    message("user", " Hi "),
    message("assistant", "Yes?"),
    message("user", "Bye"),
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
def test_golden_prompts_with_the_special_tokens_of_the_model(name: str, add_bos: bool) -> None:
    specials, text, expected = GOLDEN[name]
    tokenizer = RecordingTokenizer(*specials, add_bos=add_bos)
    rendered = render(PromptRenderer(source(name), tokenizer), HELLO)
    assert rendered.text == text
    assert tokenizer.decode(rendered.ids or []) == text
    assert specials_of(rendered) == [FIRST_SPECIAL + number for number in expected]
    assert rendered.special_tokens == len(expected)


def test_no_double_bos() -> None:
    for before in ("", "{{ bos_token }}", "{{ bos_token }}{{ bos_token }}"):
        renderer = PromptRenderer(
            before + "{{ messages[0].content }}", RecordingTokenizer("<s>", "</s>", add_bos=True)
        )
        assert render(renderer, make_chat(message("user", "a"))).ids == [FIRST_SPECIAL, ord("a")]
    renderer = PromptRenderer("{{ messages[0].content }}", RecordingTokenizer("<s>", "</s>"))
    assert render(renderer, make_chat(message("user", "a"))).ids == [ord("a")]


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 5000])
def test_no_double_bos_however_often_a_client_writes_it(count: int) -> None:
    renderer = PromptRenderer(None, RecordingTokenizer("<s>", "</s>", add_bos=True))
    ids = asyncio.run(renderer.encode_prompt(Prompt(content="<s>" * count + "</s>a<s>")))
    assert ids == [FIRST_SPECIAL, FIRST_SPECIAL + 1, ord("a"), FIRST_SPECIAL]
    if count:
        ids = asyncio.run(renderer.encode_prompt(Prompt(content="<s>" * count)))
        assert ids == [FIRST_SPECIAL]


def test_counting_the_characters_of_many_special_tokens_lets_others_run() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def go() -> None:
        tokenizer = RecordingTokenizer("<s>", "</s>")
        limit = make_limit(29_999, 3, BadRequest)
        other = asyncio.create_task(count_turns())
        with pytest.raises(BadRequest, match="at least"):
            await encode_pieces(["", "<s>"] * 30_000, tokenizer, TokenCache(1000), limit=limit)
        other.cancel()

    asyncio.run(go())
    assert turns >= 2 * 30_000 // COUNTED_PIECES


def test_special_tokens_that_strip_white_space() -> None:
    tokenizer = RecordingTokenizer(*CHATML, rstrip="<|im_end|>")
    rendered = render(PromptRenderer(source("chatml"), tokenizer), make_chat(message("user", "a")))
    assert "".join(tokenizer.encoded_texts) == "user\naassistant\n"
    assert rendered.text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_tools_calls_and_results_are_rendered() -> None:
    calls = tuple(ToolCall(id=f"call-{n}", name="f", arguments=f'{{"n": {n}}}') for n in (1, 2))
    chat = make_chat(
        message("user", "u"),
        message("assistant", tool_calls=calls),
        message("tool", "two", tool_call_id="call-2"),
        message("tool", "one", tool_call_id="call-1"),
        tools=(Tool(name="f", parameters={"type": "object", "properties": {"n": {}}}),),
    )
    text = render(PromptRenderer(source("agent"), RecordingTokenizer(*CHATML)), chat).text
    assert '{"type": "function", "function": {"name": "f", "parameters": {"type"' in text
    assert "<tool_call>call-1 <function=f><n>1</n></function></tool_call>" in text
    assert text.index("tool f\none\n(call-1)") < text.index("tool f\ntwo\n(call-2)")
    text = render(PromptRenderer(source("chatml"), None), chat).text
    assert '<tools>\n{"type": "function", "function": {"name": "f", "parameters": ' in text
    assert '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>' in text
    assert text.index("<tool_response>\none\n") < text.index("<tool_response>\ntwo\n")


# How a prompt ends

USER, OPEN = message("user", "Count."), message("assistant", " One, <|im_end|> two,  ")
CALL = ToolCall(id="1", name="f", arguments="{}")
LAST = {"add_generation_prompt": False, "continue_final_message": True}


@pytest.mark.parametrize("name", ["chatml", "llama3", "agent", "parts"])
def test_continue_final_message_ends_right_after_its_text(name: str) -> None:
    rendered = render(
        PromptRenderer(source(name), RecordingTokenizer(*CHATML)), make_chat(USER, OPEN, **LAST)
    )
    assert rendered.text.endswith("One, <|im_end|> two,  ")
    assert CHATML.index("<|im_end|>") + FIRST_SPECIAL not in specials_of(rendered)[-1:]


def test_continue_an_empty_message() -> None:
    rendered = render(
        PromptRenderer(source("chatml"), None), make_chat(USER, message("assistant"), **LAST)
    )
    assert rendered.text.endswith("<|im_start|>assistant\n")


def test_without_generation_prompt() -> None:
    rendered = render(
        PromptRenderer(source("chatml"), None), make_chat(USER, add_generation_prompt=False)
    )
    assert rendered.text == "<|im_start|>user\nCount.<|im_end|>\n"


@pytest.mark.parametrize(
    "chat",
    [
        make_chat(USER, OPEN, continue_final_message=True),
        make_chat(OPEN, USER, **LAST),
        make_chat(USER, message("assistant", "a", tool_calls=(CALL,)), **LAST),
    ],
)
def test_continue_final_message_is_rejected_where_it_makes_no_sense(chat: Chat) -> None:
    with pytest.raises(BadRequest) as caught:
        render(PromptRenderer(source("agent"), None), chat)
    assert caught.value.param == "continue_final_message"


def test_continue_final_message_that_the_template_drops() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    with pytest.raises(Unsupported) as caught:
        render(PromptRenderer(source, None), make_chat(USER, OPEN, **LAST))
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
def test_only_the_template_decides_where_an_answer_starts(
    name: str, text: str, special: bool
) -> None:
    """A user who mentions the markers does not change where the answer starts."""
    reasoning = find_reasoning(name)
    start, end = reasoning.open[0], reasoning.close[0]
    source = OPENING.replace("START", start).replace("END", end)
    known = ("<|im_start|>", "<|im_end|>", *((start, end) if special else ()))
    renderer = PromptRenderer(source, ByteTokenizer(markup=known))
    question = text.replace("START", start).replace("END", end)
    output_format = OutputFormat(None, name)

    def starts_in_reasoning(*more: Message, **kwargs: Any) -> bool | None:
        fields: dict[str, Any] = {"template_kwargs": kwargs} | (LAST if more else {})
        chat = make_chat(message("user", question), *more, **fields)
        rendered = asyncio.run(renderer.render(chat))
        start = asyncio.run(output_format.find_answer_start(chat, rendered, renderer))
        return start.in_reasoning

    assert starts_in_reasoning(enable_thinking=True)
    assert not starts_in_reasoning(enable_thinking=False)
    assert not starts_in_reasoning()
    assert starts_in_reasoning(message("assistant", f"{start}so far"))
    assert not starts_in_reasoning(message("assistant", f"{start}so far{end}and"))
    assert not starts_in_reasoning(message("assistant", "so far"))


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
        chat = make_chat(USER, message("user", text))
        assert asyncio.run(PromptRenderer(source, None).render_opening(chat)) == opening


def test_opening_is_what_the_template_writes_before_the_answer() -> None:
    renderer = PromptRenderer(source("agent"), None)
    no_reasoning = make_chat(message("user", "<think>"), template_kwargs={"enable_thinking": False})
    assert asyncio.run(renderer.render_opening(make_chat(USER))) == "<|im_start|>assistant\n"
    expected = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert asyncio.run(renderer.render_opening(no_reasoning)) == expected


# Variables


def test_template_kwargs() -> None:
    renderer = PromptRenderer(source("agent"), None)
    chat = make_chat(USER, template_kwargs={"enable_thinking": False})
    assert render(renderer, chat).text.endswith("</think>\n\n")
    for name in ("messages", "tokenize", "chat_template", "bos_token", "thinking"):
        with pytest.raises(BadRequest) as caught:
            render(renderer, make_chat(USER, template_kwargs={name: "x"}))
        assert caught.value.param == f"chat_template_kwargs.{name}"


def test_variables_that_some_templates_read() -> None:
    renderer = PromptRenderer(
        "{{ tool_choice }}|{{ functions }}|{{ datetime }}|{{ bos_token + '' }}", None
    )
    text = render(renderer, make_chat(USER, tool_choice="required")).text
    choice, functions, date, bos = text.split("|")
    assert (choice, functions, bos) == ("required", "[]", "")
    assert date.endswith("GMT")


# What is rejected


def test_malformed_template_fails_when_the_model_is_loaded() -> None:
    with pytest.raises(ModelBroken):
        PromptRenderer("{% if %}", None)


def test_the_reason_that_a_template_gives_contains_no_breaks() -> None:
    tokenizer = RecordingTokenizer("<s>", "</s>")
    renderer = PromptRenderer("{{ raise_exception('no: ' + messages[0].content) }}", tokenizer)
    with pytest.raises(TemplateRejected) as caught:
        render(renderer, make_chat(message("user", "x<s>")))
    assert caught.value.message.endswith("no: x<s>")


@pytest.mark.parametrize("tokenizer", [None, RecordingTokenizer("<s>", "</s>")])
@pytest.mark.parametrize("chat", [Chat(messages=()), make_chat(message("user", ""))])
def test_empty_prompts_are_rejected(tokenizer: RecordingTokenizer | None, chat: Chat) -> None:
    for template in ("{{ messages[0].content if messages }}", None):
        with pytest.raises(BadRequest) as caught:
            render(PromptRenderer(template, tokenizer), chat)
        assert caught.value.param == "messages"


def test_deep_requests_are_rejected() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(BadRequest):
        render(
            PromptRenderer("{{ documents|length }}", None),
            make_chat(USER, template_kwargs={"documents": deep}),
        )


def test_the_request_is_not_changed() -> None:
    schema = {"type": "object", "properties": {"<s>": {"type": "string"}}}
    chat = make_chat(message("user", "<s>"), tools=(Tool(name="f", parameters=schema),))
    before = msgspec.json.encode(chat)
    render(PromptRenderer(source("agent"), RecordingTokenizer("<s>", "</s>")), chat)
    assert msgspec.json.encode(chat) == before


# Without a template, without a tokenizer, without a chat


def test_without_a_template_the_prompt_is_the_contents() -> None:
    both = make_chat(message("system", "s"), message("user", "a"))
    assert render(PromptRenderer(None, None), both) == RenderedPrompt("s\n\na")
    chat = make_chat(message("user", "a <s> b"))
    assert render(PromptRenderer(None, None), chat) == RenderedPrompt("a <s> b")
    tokenizer = RecordingTokenizer("<s>", "</s>", add_bos=True)
    assert render(PromptRenderer(None, tokenizer), chat).ids == [FIRST_SPECIAL, *b"a <s> b"]
    for fields in (LAST, {"template_kwargs": {"x": 1}}, {"reasoning_effort": "low"}):
        chat = make_chat(message("user", "u"), message("assistant", "a"), **fields)
        with pytest.raises(Unsupported):
            render(PromptRenderer(None, None), chat)
    with_tools = render(PromptRenderer(None, None), make_chat(USER, tools=(Tool(name="f"),))).text
    assert with_tools.startswith("# Tools\n")
    assert with_tools.endswith("\n\nCount.")
    none = make_chat(USER, tools=(Tool(name="f"),), tool_choice="none")
    assert render(PromptRenderer(None, None), none).text == "Count."


@pytest.mark.parametrize(
    ("content", "add_bos", "parse", "expected"),
    [
        ("<s>a", True, False, [FIRST_SPECIAL, *b"<s>a"]),
        ("<s>a", False, False, [*b"<s>a"]),
        ("<s>a", True, True, [FIRST_SPECIAL, *b"a"]),
        ("<s>a", False, True, [FIRST_SPECIAL, *b"a"]),
        ("a</s><s>b", False, True, [*b"a", FIRST_SPECIAL + 1, FIRST_SPECIAL, *b"b"]),
        ("a", True, True, [FIRST_SPECIAL, *b"a"]),
        ("", True, True, [FIRST_SPECIAL]),
        ("", False, True, []),
        ([1, 257], True, True, [1, 257]),
        ([], True, True, []),
    ],
)
def test_prompts_that_are_not_chats(
    content: Any, add_bos: bool, parse: bool, expected: list[int]
) -> None:
    renderer = PromptRenderer(None, RecordingTokenizer("<s>", "</s>", add_bos=True))
    prompt = Prompt(content=content, add_special_tokens=add_bos, parse_special=parse)
    assert asyncio.run(renderer.encode_prompt(prompt)) == expected


def test_markup_inside_a_prompt_gets_no_second_bos_token() -> None:
    renderer = PromptRenderer(None, RecordingTokenizer("<s>", "</s>", add_bos=True))
    assert asyncio.run(renderer.encode_markup("a</s>")) == [*b"a", FIRST_SPECIAL + 1]


def test_prompts_for_an_engine_without_tokenizer() -> None:
    renderer = PromptRenderer(None, None)
    for content in ("<s>a", [5, 10**6]):
        assert asyncio.run(renderer.encode_prompt(Prompt(content=content))) == content


@pytest.mark.parametrize("ids", [[-1], [0, 258], [10**30]])
def test_token_ids_out_of_range_are_rejected(ids: list[int]) -> None:
    renderer = PromptRenderer(None, RecordingTokenizer("<s>", "</s>"))
    with pytest.raises(BadRequest) as caught:
        asyncio.run(renderer.encode_prompt(Prompt(content=ids)))
    assert caught.value.param == "prompt"


# The token cache, and slow templates


def test_only_the_texts_of_new_turns_are_encoded() -> None:
    tokenizer = RecordingTokenizer(*CHATML)
    renderer = PromptRenderer(source("chatml"), tokenizer)
    turns = [message("user" if n % 2 == 0 else "assistant", f"turn {n}") for n in range(9)]
    first = render(renderer, make_chat(*turns[:7]))
    tokenizer.encoded_texts.clear()
    second = render(renderer, make_chat(*turns))
    assert tokenizer.encoded_texts == ["assistant\nturn 7", "user\nturn 8"]
    new = len("".join(tokenizer.encoded_texts))
    assert second.cached_tokens == len(second.ids or ()) - second.special_tokens - new
    assert first.cached_tokens < second.cached_tokens
    assert renderer.token_cache.encoded_tokens > 0


def test_same_ids_with_and_without_the_token_cache(default_model: Path) -> None:
    metadata = gguf.read_header(default_model).metadata
    tokenizer = tokenizer_from_gguf(metadata)
    template = metadata["tokenizer.chat_template"]
    warm, cold = (
        PromptRenderer(template, tokenizer),
        PromptRenderer(template, tokenizer, cache_bytes=0),
    )
    turns = [
        message("user" if n % 2 == 0 else "assistant", f"Größe {n} <|im_end|> 漢字")
        for n in range(8)
    ]
    for last in range(1, 9):
        cached, uncached = (
            render(warm, make_chat(*turns[:last])),
            render(cold, make_chat(*turns[:last])),
        )
        assert cached.ids == uncached.ids
        assert tokenizer is not None
        assert tokenizer.decode(cached.ids or []) == cached.text
    assert warm.token_cache.cached_tokens > 0
    assert cold.token_cache.cached_tokens == 0


def test_the_token_cache_is_bounded_and_drops_the_oldest() -> None:
    cache = TokenCache(10_000)
    for number in range(100):
        cache.put(f"text {number}", [number])
        assert cache.get("text 0") is not None
    assert cache.size <= 10_000
    assert cache.get("text 99") == cache.get("text 99") is not None
    assert cache.get("text 1") is None
    cache.put("x" * 9000, [1])
    assert cache.get("x" * 9000) is None


def test_slow_templates_do_not_block_the_event_loop() -> None:
    source = "{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}"
    renderer = PromptRenderer(source, None)

    async def scenario() -> int:
        iterations = 0
        slow = asyncio.create_task(renderer.render(make_chat(USER)))
        while not slow.done():
            await asyncio.sleep(0)
            iterations += 1
        with pytest.raises(TemplateRejected):
            await slow
        return iterations

    assert asyncio.run(scenario()) > 5


def test_large_conversations_are_rendered_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer_module, "MAX_INLINE_CHARACTERS", 150)
    renderer = PromptRenderer("{{ messages[0].content }}", None)
    on_main_thread = []
    render_pieces = renderer.render_pieces

    def record_thread(*args: Any) -> list[str]:
        on_main_thread.append(threading.current_thread() is threading.main_thread())
        return render_pieces(*args)

    monkeypatch.setattr(renderer, "render_pieces", record_thread)
    render(renderer, make_chat(message("user", "short")))
    render(renderer, make_chat(message("user", "long enough" * 10)))
    render(
        renderer,
        make_chat(message("user", "many"), message("assistant", "small"), message("user", "ones")),
    )
    assert on_main_thread == [True, False, False]


@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("requested", [False, True])
def test_a_prompt_starts_with_bos_only_if_the_tokenizer_adds_it(
    add_bos: bool, requested: bool
) -> None:
    renderer = PromptRenderer(None, RecordingTokenizer("<s>", "</s>", add_bos=add_bos))
    ids = asyncio.run(renderer.encode_prompt(Prompt(content="ab", add_special_tokens=requested)))
    assert ids == ([FIRST_SPECIAL, *b"ab"] if add_bos and requested else list(b"ab"))
