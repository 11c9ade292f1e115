"""Passes conversations on to a server that renders prompts and parses answers itself.

A chat-only upstream takes the messages and tools of a request as they are, and answers with
content, reasoning and tool calls. `write_chat` writes them as the prompt of a job, and
`RelayReader` reads the deltas of the answer; everything in between is the same as for any other
engine. Nothing that the server does can be enforced here: a strict request is rejected, and others
get a warning.
"""
