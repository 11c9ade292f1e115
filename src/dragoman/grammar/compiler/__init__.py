"""Compiles grammars in worker processes, with a cache in front of them.

`compiler_pool` manages the workers, `worker` runs in them, `compile` is the function they run, and
`verify` tries out each finished grammar before an engine gets it.
"""
