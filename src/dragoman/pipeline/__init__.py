"""The path of a request from a decoded `Request` to `Delta`s; start reading in `pipeline.pipeline`.

`prepare` acquires the model, validates the request (`validate`), takes a place in the queue
(`admission`), renders the prompt and compiles the grammar (`constrain`). `generate` runs the engine
and reads its steps (`reader`, `detokenize`, `usage`), within a `reasoning_budget` if there is one.
"""
