"""Batches: requests that are read from a file of JSON lines and answered when there is time.

lines        splits a file into lines as it is read
validation   checks all lines before the first is answered
run          one batch from its file to its end
service      creates, lists and cancels batches; claims those that no server runs, and runs them

A line is sent through the same routes as a request over HTTP, with the owner of the batch and the
lowest priority. Its answer is in the store before it is counted, so a server that is killed loses
none, and the server that claims the batch next answers the other lines. `store.batches` makes sure
that one server at a time runs a batch.
"""
