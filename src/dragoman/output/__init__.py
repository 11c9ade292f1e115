"""The streaming parser of model output: text in pieces in, spans on channels out.

`spec` describes a format as data, `rules` combines a tool format and a reasoning format into parser
states, `state_machine` runs them over a `text_buffer`, `sections` and `arguments` read tool calls,
and `parser` is the interface. `library` adds lookup of formats by name.
"""
