"""One upstream server as an engine: llama-server, vLLM or SGLang, token ids in and ids out.

    options           what an operator can set for such models
    settings          how to reach a server, and what was found there
    engine            the engine: checks and sends jobs, and tries again where that is safe
    protocols         one file for each server's API: a job as requests, its frames as steps
    answer            one choice of an answer, checked and made into steps
    response_stream   one streamed response, read into the queue of its job
    http              connections that are kept alive, bodies and server-sent events
    identity          which model and tokenizer a server has, to notice when it is replaced
    health            whether a server is up, and when it is tried again
    probes            the jobs that a server is tried with
    failures          converts failures of a server to our errors

`models/loaders` makes a `RemoteSettings` and an `Upstream`, and calls `engine.connect`.
"""
