"""The answer is a JSON object, or several separated by semicolons."""

from dragoman.output.spec import JsonObjects, MarkerPair, ToolFormat

TOOLS = ToolFormat(
    name="llama3_json",
    models="Llama 3.1, 3.2, 3.3 and 4",
    example='{"name": "f", "parameters": {"a": 1}}',
    section=MarkerPair(open=("<|python_tag|>",)),
    unmarked_starts=("{", "["),
    bodies=(JsonObjects(requires_arguments=True),),
    aliases=("llama4_json", "llama", "llama3"),
)
