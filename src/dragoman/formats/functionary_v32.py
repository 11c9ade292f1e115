"""Every part of an answer begins with the name of who it is for; `all` is the user."""

from dragoman.output.spec import Header, Named, Tools

TOOLS = Tools(
    name="functionary_v32",
    models="Functionary 3.2",
    example='f\n{"a": 1}',
    header=Header(
        open=(">>>",),
        end=("\n",),
        begins=("",),
        routes=((r"^(?:>>>)?all$", "text"), (r"^(?:>>>)?(?P<name>[\w.-]+)$", "call")),
        written=(("text", ">>>all\n"), ("call", ">>>{name}\n")),
    ),
    bodies=(Named(),),
)
