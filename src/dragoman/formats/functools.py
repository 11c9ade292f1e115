"""The word `functools` and a list of objects, in JSON or Python syntax."""

from dragoman.output.spec import JsonObjects, MarkerPair, ToolFormat

TOOLS = ToolFormat(
    name="functools",
    models="Phi-4-mini, Firefunction v2",
    example='functools[{"name": "f", "arguments": {"a": 1}}]',
    section=MarkerPair(open=("functools",)),
    unmarked_starts=("{",),
    bodies=(JsonObjects(requires_arguments=True),),
    aliases=("phi4_mini_json", "firefunction_v2"),
)
