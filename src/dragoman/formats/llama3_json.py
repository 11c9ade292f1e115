"""The answer is a JSON object, or several with semicolons between them."""

from dragoman.output.spec import Objects, Pair, Tools

TOOLS = Tools(
    name="llama3_json",
    models="Llama 3.1, 3.2, 3.3 and 4",
    example='{"name": "f", "parameters": {"a": 1}}',
    section=Pair(open=("<|python_tag|>",)),
    first=("{",),
    bodies=(Objects(complete=True),),
    aliases=("llama4_json", "llama", "llama3"),
)
