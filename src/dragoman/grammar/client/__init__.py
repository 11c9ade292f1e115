"""What a client's grammar allows as the text of a tool, in the ways that models write texts.

A tool that takes free text may come with a grammar for it. Models write that text as they write
every argument: in quotes with escapes, or bare up to a mark. `grammars` reads the client's grammar
(`patterns` its regular expressions, `letters` their classes), `spelling` knows how letters are
written, and `rewriting` puts both together: rules for `llguidance` that derive the written form of
just the texts which the client's grammar allows.
"""
