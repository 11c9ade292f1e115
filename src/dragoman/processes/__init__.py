"""Child processes: one supervisor and one framing for all of them.

`supervisor.ChildProcess` starts a child, talks to it over a private socket, logs what it prints,
kills it and reports its exit. `framing` cuts the bytes on that socket into messages. `child` holds
what a child does right after its start.

Engines and grammar workers are built on these three; they add their own messages, time limits and
restarts.
"""
