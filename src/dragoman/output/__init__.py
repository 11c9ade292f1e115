"""The streaming parser of model output: it takes text in pieces and returns spans on channels.

`spec` describes a format as data, `rules` combines a tool format and a reasoning format into parser
states, `state_machine` runs them over a `text_buffer`, `sections` and `arguments` read tool calls,
and `parser` is the interface. `library` adds lookup of formats by name.
"""
