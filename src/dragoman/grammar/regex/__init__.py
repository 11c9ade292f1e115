r"""Regular expressions, apart from the grammars that they are used in.

Patterns from schemas and from clients' grammars come in as text. `full_match` converts a pattern
that is searched for to one that matches a whole text, which is all that llguidance can enforce:
`^a|b` becomes `(?:a)(?s:.*)|(?s:.*)(?:b)(?s:.*)`. `regex_parser` parses expressions, and
`regex_builder` combines them, derives what may follow a character, and compiles an `Automaton`.
That is needed where the text is written in another form, for example with escapes, so that a
different expression must match the written form. `exclude_markers` excludes from a text everything
that the parser of the model's output would read as a marker.

This package uses no other package of the grammar compiler.
"""
