"""The answer is a list of calls as Python writes them."""

from dragoman.output.spec import Pair, Pythonic, Tools

TOOLS = Tools(
    name="pythonic",
    models="Llama 4 and 3.2, ToolACE, Gemma 3",
    example="[f(a=1, b='x')]",
    section=Pair(open=("<|python_start|>",), close=("<|python_end|>",)),
    first=("[",),
    bodies=(Pythonic(),),
    aliases=("llama4_pythonic", "llama4"),
)
