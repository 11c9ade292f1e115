"""What the operator and the client can learn about a request: log lines, timings, traces, spans.

record      what happened to one request; the stages of the pipeline write to it
reports     what the answer says about its request: timings, trace, debug
access_log  the log line of a request, and the debug lines about its parameters and calls
log_format  structured log events, as text or as JSON
loop_lag    how long the event loop keeps requests waiting
spans       OpenTelemetry spans and the trace context
"""
