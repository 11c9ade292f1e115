"""Child processes: one supervisor and one framing for all of them.

`supervisor.ChildProcess` starts a child, talks to it over a private socket, logs its output, kills
it and reports its exit. `framing` cuts the bytes on that socket into messages. `child` has the
first steps of a child process. `worker_process` and `worker_loop` are the two sides of a worker: a
child that does one task after the other, each within limits of time and memory.

Engines, grammar compilers and media decoders are built on these; they add their own messages and
restarts.
"""
