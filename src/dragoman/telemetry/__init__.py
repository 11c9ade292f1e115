"""What the operator and the client can learn about a request: log lines, timings, traces, spans.

record          what happened to one request; the stages of the pipeline write to it
observer        follows requests from their start to their end
reports         what the answer says about its request: timings, trace, debug
raw_output      what a model generated, before anything is parsed or cut
access_log      the log line of a request, and the debug lines about its parameters and calls
log_format      structured log events, as text or as JSON
model_metrics   what is counted and measured for each model
loop_lag        how long the event loop keeps requests waiting
loop_watch      reports what blocks the event loop
spans           OpenTelemetry spans and the trace context
"""
