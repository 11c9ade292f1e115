"""The answer is a list of calls in Python syntax."""

from dragoman.output.spec import MarkerPair, PythonCalls, ToolFormat

TOOLS = ToolFormat(
    name="pythonic",
    models="Llama 4 and 3.2, ToolACE, Gemma 3",
    example="[f(a=1, b='x')]",
    section=MarkerPair(open=("<|python_start|>",), close=("<|python_end|>",)),
    unmarked_starts=("[",),
    bodies=(PythonCalls(),),
    aliases=("llama4_pythonic", "llama4"),
)
