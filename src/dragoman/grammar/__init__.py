"""From what a request demands to one grammar.

`schemas` reads JSON schemas into nodes; `values` writes nodes as grammar rules, in JSON and in the
ways that models write arguments; `calls` writes the calls of a format, from the same entry that the
parser reads; `answer` puts reasoning, content and calls together; `explicit` is for grammars that
clients bring, `inputs` for those of a tool's text. All of that is `compile.compiled`, a plain
function, which `workshop` runs in a process of its own under a budget, with a bounded cache before
it.
"""
