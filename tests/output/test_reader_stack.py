"""Readers that are resumed for themselves behave as if their callers had used `yield from`."""

from __future__ import annotations

import gc

import pytest

from dragoman.output.library import OutputParser
from dragoman.output.reader_stack import ReaderStack
from dragoman.output.text_buffer import Mismatch, ReadSteps


def test_the_caller_goes_on_when_the_reader_ends() -> None:
    stack, seen = ReaderStack(), list[str]()

    def read() -> ReadSteps[None]:
        seen.append("reader starts")
        yield
        seen.append("reader ends")

    def run() -> ReadSteps[None]:
        yield from stack.run_apart(read())
        seen.append("caller goes on")
        yield

    stack.start(run())
    assert seen == ["reader starts"]
    stack.resume()
    assert seen == ["reader starts", "reader ends", "caller goes on"]
    stack.finish()
    stack.resume()
    assert len(seen) == 3


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_errors_reach_the_callers(depth: int) -> None:
    stack, seen = ReaderStack(), list[int]()

    def read(level: int) -> ReadSteps[None]:
        yield
        if level == depth:
            raise Mismatch
        try:
            yield from stack.run_apart(read(level + 1))
        except Mismatch:
            seen.append(level)
            raise

    def run() -> ReadSteps[None]:
        try:
            yield from stack.run_apart(read(1))
        except Mismatch:
            seen.append(0)
        yield

    stack.start(run())
    for _ in range(depth):
        stack.resume()
    assert seen == list(reversed(range(depth)))


def test_an_error_of_the_main_loop_is_raised() -> None:
    stack = ReaderStack()

    def run() -> ReadSteps[None]:
        yield
        raise ValueError("broken")

    stack.start(run())
    with pytest.raises(ValueError, match="broken"):
        stack.resume()


def test_closing_ends_all_readers() -> None:
    stack, ended = ReaderStack(), list[str]()

    def read(name: str, inner: ReadSteps[None] | None) -> ReadSteps[None]:
        try:
            if inner is not None:
                yield from stack.run_apart(inner)
            yield
        finally:
            ended.append(name)

    stack.start(read("caller", read("reader", None)))
    stack.close()
    assert ended == ["reader", "caller"]
    stack.resume()


def test_a_cut_call_leaves_nothing_to_the_garbage_collector() -> None:
    def parse() -> None:
        parser = OutputParser("hermes_json", "think")
        parser.feed('<tool_call>{"name": "f", "arguments": {"a": "x')
        parser.close(truncated=True)

    parse()  # fills caches
    gc.collect()
    gc.disable()
    try:
        parse()
        assert gc.collect() == 0
    finally:
        gc.enable()
