"""Compiles the constraints of a request into one grammar for constrained decoding.

A `GrammarSpec` goes in: a JSON schema, a client's grammar, the tools that may be called, and the
output format of the model. A `CompiledGrammar` comes out: the text of one llguidance grammar, which
the engines enforce, and warnings about what it does not enforce.

- `regex`: regular expressions and automata;
- `schema`: parses JSON schemas into nodes;
- `client`: grammars, patterns and choices that clients send;
- `writer`: writes nodes, calls, messages and whole answers as grammar rules, in the model's format;
- `compiler`: runs all of that in worker processes, with a cache.

Each package may import those above it, and the modules of this directory: `lark_builder` collects
the rules, `complexity` has the errors for constraints beyond a limit, `grammar_spec` the input and
output. None of these three modules imports a package, except that `lark_builder` uses `regex`.
"""
