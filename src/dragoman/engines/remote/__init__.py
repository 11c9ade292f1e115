"""One upstream server as an engine: llama-server, vLLM or SGLang, token ids in and ids out.

    settings      how to reach a server, and what was found there
    engine        the engine: sends jobs, retries, health
    protocols     one file for each server's API: a job as requests, its frames as steps
    http          connections that are kept alive, bodies and server-sent events
    identity      which model and tokenizer a server has, to notice when it is replaced

`models/loaders` makes a `RemoteSettings` and an `Upstream`, and calls `engine.connect`.
"""
