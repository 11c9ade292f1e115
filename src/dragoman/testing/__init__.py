"""The test tools that Dragoman's own tests use, for your tests, too. Nothing here needs a model.

`ScriptedEngine` plays replies that you write down, so that you can test a client, a template or a
server without a model. It can fail in every way a real engine fails:

    engine = ScriptedEngine({"weather": "It rains.", "thanks": "You are welcome."})
    engine = ScriptedEngine(Reply("Half an ans", raise_at=2))
    dragoman.serve(engine)

`ScriptedWorker` plays such a script as an upstream server, over HTTP: llama-server, vLLM or SGLang.
It has faults of its own, those of servers and networks:

    async with ScriptedWorker("vllm", "It rains.") as worker:
        worker.set_faults(WorkerFaults(close_at=2))
        ... dragoman serve --upstream, with worker.url

`check_engine` runs every check that the server relies on over your own engine. It raises
`NotConformant`, with a line for each check that failed, or returns a `CheckResult` for each:

    results = asyncio.run(check_engine(MyEngine()))

`check_format` parses a text with an output format of yours, cut in every way, checks that the cuts
make no difference, and returns the parsed output:

    output = check_format(lambda: OutputParser(MY_FORMAT, tools=tools), text)
    assert output.calls == [("weather", {"city": "Paris"})]

`every_cut` yields the ways to cut a text into pieces, for testing any other streaming parser:

    for pieces in every_cut(text):
        assert parse(pieces) == expected
"""

from __future__ import annotations

from dragoman.testing.byte_tokenizer import ByteTokenizer
from dragoman.testing.conformance import CheckResult, NotConformant, check_engine
from dragoman.testing.cuts import every_cut
from dragoman.testing.format_checks import ParsedOutput, check_format
from dragoman.testing.replies import Reply
from dragoman.testing.scripted import ScriptedEngine
from dragoman.testing.upstream.worker import ScriptedWorker, WorkerFaults

__all__ = [
    "ByteTokenizer",
    "CheckResult",
    "NotConformant",
    "ParsedOutput",
    "Reply",
    "ScriptedEngine",
    "ScriptedWorker",
    "WorkerFaults",
    "check_engine",
    "check_format",
    "every_cut",
]
