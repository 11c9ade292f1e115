"""Child processes: one supervisor and one framing for all of them.

`supervisor.ChildProcess` starts a child, talks to it over a private socket, logs its output, kills
it and reports its exit. `framing` cuts the bytes on that socket into messages. `child` has the
first steps of a child process.

Engines and grammar workers are built on these three; they add their own messages, time limits and
restarts.
"""
