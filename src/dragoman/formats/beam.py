"""Like `harmony`, with arguments in elements."""

from dataclasses import replace

from dragoman.formats import harmony
from dragoman.output.spec import MarkerPair, TaggedArguments, ToolFormat

TOOLS = ToolFormat(
    name="beam",
    models="Beam",
    example=(
        " to=f<|channel|>analysis <|constrain|>xml<|message|>"
        '<rfl:parameter name="a">\n1\n</rfl:parameter><|call|>'
    ),
    header=replace(
        harmony.HEADER,
        routes=((r"to=(?P<name>[^\s<]+)", "call"), (r"analysis", "reasoning"), (r"", "text")),
        spellings=(
            ("reasoning", "<|channel|>analysis<|message|>"),
            ("text", "<|channel|>final<|message|>"),
            ("call", " to={name}<|channel|>analysis <|constrain|>xml<|message|>"),
        ),
    ),
    call=harmony.TOOLS.call,
    bodies=(
        TaggedArguments(
            key=MarkerPair(open=("<rfl:parameter name=",), close=(">",)),
            key_spelling='"{key}"',
            value=MarkerPair(close=("</rfl:parameter>",)),
        ),
    ),
    default_reasoning="harmony",
    evidence="parsers",
    sources="the response template in SGLang 0.5.23",
)
