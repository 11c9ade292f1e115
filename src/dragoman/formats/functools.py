"""The word `functools` and a list of objects, in JSON or as Python writes them."""

from dragoman.output.spec import Objects, Pair, Tools

TOOLS = Tools(
    name="functools",
    models="Phi-4-mini, Firefunction v2",
    example='functools[{"name": "f", "arguments": {"a": 1}}]',
    section=Pair(open=("functools",)),
    first=("{",),
    bodies=(Objects(complete=True),),
    aliases=("phi4_mini_json", "firefunction_v2"),
)
