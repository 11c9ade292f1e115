"""Writes grammar rules: whole answers, calls, arguments and values in the model's output format.

From the outside in: `answer_writer` and `message_writer` write whole answers, `call_writer` the
markers of calls, `call_body_writer` and `argument_writer` what is between them, and `json_writer`,
`python_writer` and `tagged_value_writer` single values. Before anything is written, `tool_adapter`
adapts a tool to what the parser of the format can read back, and `free_text_tools` builds the
arguments of tools that take free text. The other modules are shared helpers.
"""
