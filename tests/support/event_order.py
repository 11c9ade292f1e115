"""State machines for the streams of all wire APIs, after the vendors' documentation and types.

They know nothing about the encoders. Each takes the frames of one stream, raises `AssertionError`
at the first event that is out of order, and returns what the stream adds up to.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

Event: TypeAlias = dict[str, Any]

# Responses

RESOURCE_FIELDS = frozenset(
    (
        "id",
        "object",
        "created_at",
        "status",
        "completed_at",
        "error",
        "incomplete_details",
        "model",
        "output",
        "usage",
        "background",
        "frequency_penalty",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "parallel_tool_calls",
        "presence_penalty",
        "previous_response_id",
        "prompt_cache_key",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
    )
)
FINAL_EVENTS = {
    "response.completed": {"completed"},
    "response.incomplete": {"incomplete", "cancelled"},
    "response.failed": {"failed"},
}
ID_PREFIXES = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
    "mcp_call": "mcp_",
    "mcp_list_tools": "mcpl_",
    "mcp_approval_request": "mcpr_",
}
# the events of items that have no parts, and the field that they add to
ARGUMENTS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
    "mcp_call": ("response.mcp_call_arguments", "arguments"),
}
PART_TYPES = {"message": "output_text", "reasoning": "reasoning_text"}
FIXED_FIELDS = (
    "id",
    "type",
    "role",
    "call_id",
    "name",
    "namespace",
    "server_label",
    "approval_request_id",
)


def parse_sse(frames: list[bytes]) -> list[Event]:
    """Parse the events of named frames: an `event:` line, a `data:` line, an empty line."""
    events = []
    for frame in frames:
        lines = frame.split(b"\n")
        assert lines[2:] == [b"", b""], frame
        assert lines[0].startswith(b"event: "), frame
        assert lines[1].startswith(b"data: {"), frame
        event = json.loads(lines[1][6:])
        assert event["type"] == lines[0][7:].decode(), frame
        events.append(event)
    return events


class _TextMachine:
    """A text that comes in deltas and is then repeated as a whole."""

    def __init__(self) -> None:
        self.text = ""
        self.logprobs: list[Any] = []
        self.is_done = False

    def add_delta(self, event: Event) -> None:
        assert not self.is_done, "a delta after the whole text"
        self.text += event["delta"]
        self.logprobs += event.get("logprobs", [])

    def finish(self, text: str, logprobs: list[Any] | None = None) -> None:
        assert not self.is_done, "finished twice"
        assert text == self.text, f"{text!r} is not the sum of the deltas: {self.text!r}"
        if logprobs is not None:
            assert logprobs == self.logprobs
        self.is_done = True


class _PartMachine(_TextMachine):
    """A part of a message, of reasoning or of a summary."""

    def __init__(self, part: Event, kind: str) -> None:
        super().__init__()
        assert part["type"] == kind
        assert part["text"] == ""
        if kind == "output_text":
            assert part["annotations"] == []
            assert part["logprobs"] == []
        self.kind = kind
        self.part: Event | None = None

    def close(self, part: Event) -> None:
        assert self.is_done, "a part that ends before its text"
        assert self.part is None, "a part that ends twice"
        assert part["type"] == self.kind
        assert part["text"] == self.text
        assert part.get("logprobs", []) == self.logprobs
        self.part = part


class _ItemMachine:
    """One item of the output."""

    def __init__(self, item: Event) -> None:
        self.item = item
        self.type = item["type"]
        assert item["id"].startswith(ID_PREFIXES[self.type])
        assert item.get("status", "in_progress") == "in_progress"
        self.content: list[_PartMachine] = []
        self.summary: list[_PartMachine] = []
        self.text_machine = _TextMachine()
        self.states: list[str] = []  # of remote tools: `in_progress`, `completed` and so on
        self.is_done = False
        if self.type in PART_TYPES:
            assert item["content"] == []
            assert item.get("summary", []) == []
        elif self.type in ARGUMENTS:
            assert item[ARGUMENTS[self.type][1]] == ""
        if self.type in ("function_call", "custom_tool_call"):
            assert item["call_id"]
            assert item["call_id"] != item["id"]

    @property
    def is_growing(self) -> bool:
        """Whether the model is still generating it."""
        if self.type in ARGUMENTS:
            return not self.text_machine.is_done
        return self.type in PART_TYPES and not self.is_done

    def handle(self, event: Event) -> None:
        assert not self.is_done, "an event of an item that is done"
        assert event["item_id"] == self.item["id"]
        kind = event["type"]
        if "summary" in kind:
            assert self.type == "reasoning"
            self._handle_part(kind, event, self.summary, "summary_index", "summary_text")
        elif self.type in PART_TYPES:
            self._handle_part(kind, event, self.content, "content_index", PART_TYPES[self.type])
        elif self.type in ARGUMENTS and kind.startswith(ARGUMENTS[self.type][0] + "."):
            assert self.type != "mcp_call" or self.states == ["in_progress"]
            self._handle_arguments(kind, event)
        else:
            self._handle_state(kind)

    def _handle_part(
        self, kind: str, event: Event, parts: list[_PartMachine], index: str, text_type: str
    ) -> None:
        if kind.endswith("_part.added"):
            assert all(part.part is not None for part in parts), "two parts at once"
            assert event[index] == len(parts), "a part in the wrong place"
            parts.append(_PartMachine(event["part"], text_type))
            return
        part = parts[event[index]]
        if kind.endswith("_part.done"):
            part.close(event["part"])
        elif kind.endswith(f"{text_type}.delta"):
            part.add_delta(event)
        else:
            assert kind.endswith(f"{text_type}.done"), f"{kind} in a {self.type}"
            part.finish(event["text"], event.get("logprobs"))

    def _handle_arguments(self, kind: str, event: Event) -> None:
        name, field = ARGUMENTS[self.type]
        if kind == f"{name}.delta":
            self.text_machine.add_delta(event)
            return
        assert kind == f"{name}.done"
        self.text_machine.finish(event[field])
        assert event.get("name", self.item["name"]) == self.item["name"]
        if field == "arguments":
            assert event[field], "arguments are never an empty text"

    def _handle_state(self, kind: str) -> None:
        prefix, _, state = kind.rpartition(".")
        assert prefix == f"response.{self.type}", f"{kind} in a {self.type}"
        assert self.type in ("mcp_call", "mcp_list_tools")
        if state == "in_progress":
            assert not self.states
        else:
            assert state in ("completed", "failed")
            assert self.states == ["in_progress"]
            assert self.type == "mcp_list_tools" or self.text_machine.is_done
        self.states.append(state)

    def finish(self, item: Event) -> None:
        assert not self.is_done, "done twice"
        self.is_done = True
        for field in FIXED_FIELDS:
            assert item.get(field) == self.item.get(field), f"`{field}` changed"
        status = item.get("status", "completed")
        if self.type in PART_TYPES:
            assert self.content, "an item without a part"
            assert status in ("completed", "incomplete")
            assert item["content"] == [part.part for part in self.content]
            assert item.get("summary", []) == [part.part for part in self.summary]
            if self.summary:
                assert [p.text for p in self.summary] == [p.text for p in self.content]
        elif self.type in ARGUMENTS:
            assert self.text_machine.is_done, "a call that is done before its arguments"
            assert item[ARGUMENTS[self.type][1]] == self.text_machine.text
            assert status == (self.states[-1] if self.type == "mcp_call" else "completed")
        if self.type in ("mcp_call", "mcp_list_tools"):
            assert len(self.states) == 2, "a remote server without an answer"
            assert (item["error"] is None) == (self.states[-1] == "completed")
        if self.type == "mcp_approval_request":
            assert item == self.item
        self.item = item

    def check_unfinished(self, item: Event) -> None:
        """Check an item that was not finished: only calls may be, with that status."""
        assert self.type in ARGUMENTS, f"a {self.type} that was never done"
        for field in FIXED_FIELDS:
            assert item.get(field) == self.item.get(field), f"`{field}` changed"
        assert item["status"] == "incomplete"
        assert self.states == (["in_progress"] if self.type == "mcp_call" else [])
        assert item[ARGUMENTS[self.type][1]] == self.text_machine.text


class _ResponseMachine:
    def __init__(self) -> None:
        self.phase = "new"
        self.first: Event = {}
        self.items: list[_ItemMachine] = []
        self.final: Event | None = None

    def handle(self, event: Event) -> None:
        kind = event["type"]
        assert self.final is None, f"{kind} after the end"
        assert ("obfuscation" not in event) or kind.endswith(".delta")
        if kind in FINAL_EVENTS:
            self._end(kind, event["response"])
        elif kind in ("response.created", "response.queued", "response.in_progress"):
            self._begin(kind.removeprefix("response."), event["response"])
        else:
            assert self.phase == "in_progress", f"{kind} before the response is in progress"
            self._handle_item(kind, event)

    def _begin(self, phase: str, response: Event) -> None:
        allowed_phases = {
            "created": ("new",),
            "queued": ("created",),
            "in_progress": ("created", "queued"),
        }
        assert self.phase in allowed_phases[phase], f"{phase} after {self.phase}"
        self.phase = phase
        statuses = {"created": ("queued", "in_progress")}.get(phase, (phase,))
        assert response["status"] in statuses
        self._check_fixed_fields(response)
        for field in ("usage", "error", "incomplete_details", "completed_at"):
            assert response[field] is None
        assert response["output"] == []

    def _check_fixed_fields(self, response: Event) -> None:
        """Check that the fields that are known from the start do not change."""
        assert response.keys() >= RESOURCE_FIELDS
        assert "output_text" not in response
        assert type(response["created_at"]) is int
        assert response["object"] == "response"
        assert response["id"].startswith("resp_")
        changing = {"status", "output", "usage", "error", "incomplete_details", "completed_at"}
        fixed = {name: value for name, value in response.items() if name not in changing}
        self.first = self.first or fixed
        assert fixed == self.first

    def _handle_item(self, kind: str, event: Event) -> None:
        index = event["output_index"]
        if kind == "response.output_item.added":
            assert index == len(self.items), "an item in the wrong place"
            assert event["item"]["id"] not in [other.item["id"] for other in self.items]
            assert not any(item.is_growing for item in self.items), "two items at once"
            self.items.append(_ItemMachine(event["item"]))
            return
        assert index < len(self.items), f"{kind} before its item"
        if kind == "response.output_item.done":
            self.items[index].finish(event["item"])
        else:
            self.items[index].handle(event)

    def _end(self, kind: str, response: Event) -> None:
        assert self.phase != "new", "an end without a beginning"
        self._check_fixed_fields(response)
        status = response["status"]
        assert status in FINAL_EVENTS[kind]
        is_stopped = self.phase == "queued" and status in ("cancelled", "failed")
        assert self.phase == "in_progress" or is_stopped
        assert (response["completed_at"] is not None) == (status == "completed")
        assert (response["error"] is not None) == (status == "failed")
        assert (response["incomplete_details"] is not None) == (status == "incomplete")
        if status == "failed":
            assert set(response["error"]) == {"code", "message"}
            assert response["error"]["code"]
            assert response["error"]["message"]
        if status == "incomplete":
            assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        self._check_output(response)
        if status in ("completed", "incomplete"):
            assert response["output"], "no output"
            _check_usage(response["usage"])
        self.final = response

    def _check_output(self, response: Event) -> None:
        assert len(response["output"]) == len(self.items)
        for machine, item in zip(self.items, response["output"], strict=True):
            if machine.is_done:
                assert item == machine.item, "an item changed after it was done"
            else:
                machine.check_unfinished(item)
        calls = [item["call_id"] for item in response["output"] if "call_id" in item]
        assert len(calls) == len(set(calls))


def _check_usage(usage: Event) -> None:
    prompt_tokens, output_tokens = usage["input_tokens"], usage["output_tokens"]
    assert usage["total_tokens"] == prompt_tokens + output_tokens
    assert 0 <= usage["input_tokens_details"]["cached_tokens"] <= prompt_tokens
    assert 0 <= usage["output_tokens_details"]["reasoning_tokens"] <= output_tokens


def check_responses(frames: list[bytes]) -> Event:
    """Return the resource that a stream of `/v1/responses` ends with."""
    response = _ResponseMachine()
    for number, event in enumerate(parse_sse(frames)):
        assert event["sequence_number"] == number
        response.handle(event)
    assert response.final is not None, "no end"
    return response.final


# Chat completions


class _ChoiceMachine:
    def __init__(self) -> None:
        self.message: Event = {}
        self.finish: str | None = None

    def handle(self, choice: Event) -> None:
        assert self.finish is None, "a choice that continues after its end"
        delta = choice["delta"]
        if not self.message:
            assert delta == {"role": "assistant", "content": ""}, "the first chunk names the role"
            self.message = {"role": "assistant", "content": "", "reasoning": "", "calls": []}
        elif choice["finish_reason"] is not None:
            assert delta == {}, "the chunk that ends a choice is empty"
            assert choice["finish_reason"] in ("stop", "length", "tool_calls", "content_filter")
            self.finish = choice["finish_reason"]
        else:
            assert len(delta) == 1
            self._add_delta(delta)

    def _add_delta(self, delta: Event) -> None:
        (name, value), message = next(iter(delta.items())), self.message
        if name == "tool_calls":
            assert len(value) == 1
            self._add_call(value[0], message["calls"])
        else:
            assert name in ("content", "reasoning_content")
            assert isinstance(value, str)
            message["content" if name == "content" else "reasoning"] += value

    @staticmethod
    def _add_call(call: Event, calls: list[Event]) -> None:
        index, function = call["index"], call["function"]
        if index == len(calls):
            assert call.keys() == {"index", "id", "type", "function"}
            assert call["id"]
            assert call["type"] == "function"
            assert function["name"]
            assert function["arguments"] == ""
            assert call["id"] not in [other["id"] for other in calls]
            calls.append({"id": call["id"], "name": function["name"], "arguments": ""})
            return
        assert index < len(calls), "calls are numbered without a gap"
        assert call.keys() == {"index", "function"}
        assert function.keys() == {"arguments"}
        calls[index]["arguments"] += function["arguments"]


def check_chat(frames: list[bytes]) -> Event:
    """Return the choices that a stream of chat completions adds up to, the usage, or the error."""
    assert frames[-1] == b"data: [DONE]\n\n", "no end"
    choices: list[_ChoiceMachine] = []
    head: Event = {}
    usage = error = None
    for frame in frames[:-1]:
        assert frame.startswith(b"data: {")
        assert frame.endswith(b"}\n\n")
        assert b"\n" not in frame[:-2]
        chunk = json.loads(frame[6:])
        assert usage is error is None, "a chunk after the last one"
        if "error" in chunk:
            assert chunk["error"].keys() == {"message", "type", "param", "code"}
            error = chunk["error"]
            continue
        assert chunk["object"] == "chat.completion.chunk"
        fields = {name: chunk[name] for name in ("id", "created", "model")}
        head = head or fields
        assert fields == head
        if not chunk["choices"]:
            usage = chunk["usage"]
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            continue
        assert chunk.get("usage") is None
        (choice,) = chunk["choices"]
        if choice["index"] == len(choices):
            choices.append(_ChoiceMachine())
        choices[choice["index"]].handle(choice)
    if error is None:
        assert choices, "no choices"
        assert all(choice.finish for choice in choices), "a choice without an end"
    messages = [choice.message | {"finish": choice.finish} for choice in choices]
    return {"choices": messages, "usage": usage, "error": error}


# Messages

BLOCKS: dict[str, tuple[Event, dict[str, str]]] = {
    "text": ({"type": "text", "text": ""}, {"text_delta": "text"}),
    "thinking": (
        {"type": "thinking", "thinking": "", "signature": ""},
        {"thinking_delta": "thinking", "signature_delta": "signature"},
    ),
    "tool_use": ({"type": "tool_use", "input": {}}, {"input_json_delta": "partial_json"}),
}
STOP_REASONS = ("end_turn", "max_tokens", "stop_sequence", "tool_use")


class _BlockMachine:
    def __init__(self, block: Event) -> None:
        self.type = block["type"]
        empty, self._deltas = BLOCKS[self.type]
        for name, value in empty.items():
            assert block[name] == value, f"a block begins empty: {block}"
        if self.type == "tool_use":
            assert block["id"]
            assert block["name"]
        self.block = dict(block)
        self.texts: Event = {}
        self.is_open = True

    def add_delta(self, delta: Event) -> None:
        assert self.is_open, "a delta of a block that has ended"
        field = self._deltas[delta["type"]]
        assert "signature" not in self.texts, "reasoning after its signature"
        self.texts[field] = self.texts.get(field, "") + delta[field]

    def stop(self) -> None:
        assert self.is_open, "a block that ends twice"
        self.is_open = False
        self.block |= self.texts


class _MessageMachine:
    def __init__(self) -> None:
        self.message: Event | None = None
        self.blocks: list[_BlockMachine] = []
        self.stop: Event | None = None
        self.error: Event | None = None
        self.is_over = False

    def handle(self, event: Event) -> None:
        kind = event["type"]
        assert not self.is_over, f"{kind} after the end"
        if kind == "message_start":
            self._start(event["message"])
            return
        assert self.message is not None, f"{kind} before the message"
        if kind == "error":
            assert event["error"]["type"]
            assert event["error"]["message"]
            self.error, self.is_over = event["error"], True
            return
        if kind == "ping":
            return
        if kind.startswith("content_block_"):
            assert self.stop is None, "a block after the reason to stop"
            self._handle_block(kind, event)
        elif kind == "message_delta":
            self._stop(event)
        else:
            assert kind == "message_stop"
            assert self.stop is not None
            self.is_over = True

    def _start(self, message: Event) -> None:
        assert self.message is None, "two messages"
        assert message["type"] == "message"
        assert message["role"] == "assistant"
        assert message["id"].startswith("msg_")
        assert message["content"] == []
        assert message["stop_reason"] is None
        assert message["stop_sequence"] is None
        assert all(
            type(message["usage"][name]) is int for name in ("input_tokens", "output_tokens")
        )
        self.message = message

    def _handle_block(self, kind: str, event: Event) -> None:
        index = event["index"]
        if kind == "content_block_start":
            assert index == len(self.blocks), "a block in the wrong place"
            assert not any(block.is_open for block in self.blocks), "two blocks at once"
            self.blocks.append(_BlockMachine(event["content_block"]))
            return
        assert index == len(self.blocks) - 1, f"{kind} of another block"
        if kind == "content_block_delta":
            self.blocks[index].add_delta(event["delta"])
        else:
            assert kind == "content_block_stop"
            self.blocks[index].stop()

    def _stop(self, event: Event) -> None:
        assert self.stop is None, "two reasons to stop"
        assert not any(block.is_open for block in self.blocks), "a block that never ended"
        delta = event["delta"]
        assert delta["stop_reason"] in STOP_REASONS
        assert (delta.get("stop_sequence") is None) == (delta["stop_reason"] != "stop_sequence")
        assert type(event["usage"]["output_tokens"]) is int
        has_calls = any(block.type == "tool_use" for block in self.blocks)
        assert has_calls or delta["stop_reason"] != "tool_use"
        self.stop = delta | {"usage": event["usage"]}


def check_messages(frames: list[bytes]) -> Event:
    """Return the blocks that a stream of `/v1/messages` adds up to, its stop reason or error."""
    message = _MessageMachine()
    for event in parse_sse(frames):
        message.handle(event)
    assert message.is_over, "no end"
    blocks = [block.block | block.texts for block in message.blocks]
    for block in message.blocks:
        if block.type == "thinking" and not block.is_open and message.error is None:
            assert block.block["signature"], "reasoning without a signature"
    return {"content": blocks, "stop": message.stop, "error": message.error}
