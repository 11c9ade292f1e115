"""A scripted upstream server: llama-server, vLLM or SGLang, without a model and with faults.

`ScriptedWorker` is a real HTTP server on loopback. It plays a script as `ScriptedEngine` does, and
speaks the token API of the server that it stands for:

    async with ScriptedWorker("vllm", "It rains.") as worker:
        worker.faults = WorkerFaults(close_at=2, times=1)
        ... connect to worker.url

    worker     the server: routes, faults, counters
    apis       requests as jobs and steps as frames, for each kind of server
    server     HTTP/1.1 with keep-alive, as little of it as is needed
"""
