"""Stateful responses: everything between a decoded request and the last frame of its answer.

A `run` is one answer in progress; `run.CompletionRun` is a stateless one. A `ResponseRun`
(`response_run`) is a response of the Responses API: it continues earlier responses (`history`),
takes as many rounds of the model as its remote tools need (`tool_rounds`), drops the beginning of a
conversation that is too long (`truncation`), and is stored when it ends. The `service` prepares
these runs and gets, cancels and deletes stored responses. Responses in the `background` run on
without a client; their frames are in a `feed`, from which clients `resume` them. `compaction`
summarises a conversation. `state` opens the store and the signing key.
"""
