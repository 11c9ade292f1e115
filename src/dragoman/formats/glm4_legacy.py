"""The answer is a name on a line of its own and the arguments below it."""

from dragoman.output.spec import Named, Tools

TOOLS = Tools(
    name="glm4_legacy",
    models="GLM-4",
    example='f\n{"a": 1}',
    bodies=(Named(ends=("\n",), name=r"(?P<name>[\w.-]+)"),),
    start=True,
)
