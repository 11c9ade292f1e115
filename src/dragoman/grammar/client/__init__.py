"""Grammars, regular expressions and choices that clients send as constraints.

`constraint` validates them and adds them to the grammar of the answer. That is enough if the model
writes the constrained text as it is: an answer that must match `start: "a" | "b"` just includes
these rules.

But the input of a tool may be constrained as well, and a model writes it as it writes every
argument: in quotes with escapes, or up to a closing marker. So the other modules rewrite the
grammar into rules that derive the written form of exactly the texts that the client's grammar
allows; for `start: "a\n"` in quotes, they derive `a\n` with a backslash, and also `a\u000a`.
`lark_parser` parses the grammar, `first_follow` computes what can follow each terminal, and
`text_syntax` describes how characters are written. `terminal_writer` and `rule_writer` write the
new terminals and rules, and `unpadded_text` those for a text that ends without padding.
`grammar_text` makes the result available as a node beside those of schemas.

Of the grammar compiler, this package uses `regex`, `lark_builder`, the errors in `complexity`, and
one node type of `schema`.
"""
