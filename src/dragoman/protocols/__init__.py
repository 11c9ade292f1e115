"""The wire APIs: one package each, pure functions over Structs.

A wire API decodes a body into the data types of `types` and encodes those of `events`. It knows
nothing of engines, tokenizers, HTTP or the other wire APIs; `shared` holds the code that several
of them use. Every package exports a `DIALECT`, see `dialect`.
"""
