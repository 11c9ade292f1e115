"""Reads JSON schemas: `schema.read` turns one into `nodes`, which say what it allows in few words.

`limits` bounds what is looked at, `keywords` checks what a schema says, `simple` makes nodes of it,
`merge` joins what must hold at once, `members` counts, `patterned` tells names by patterns,
`pointers` follows references and `settle` finds out what of all that has an end. `foreign` is for
what only the engine's own reader can do.
"""
