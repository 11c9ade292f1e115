"""The fenced blocks of a Markdown page, and a place to run them in.

A comment on the line before a block says how it is tested:

    <!-- run by make test-install -->   another target runs it
    <!-- run by make test-vllm on 10.0.0.1, 10.0.0.2 -->  it does so on each of these machines
    <!-- run in a terminal -->          it is a chat, in which a user types
    <!-- file: dragoman.yaml -->        its text becomes this file in the working directory
    <!-- serves gpu-box:8000 -->        it starts the server of the later blocks at this address

Blocks of one page run in order in one working directory, as a reader runs them (`workspace`). The
home directory has the default model and nothing else; model.gguf and path/to/model.gguf are files
of the reader's own, as are photo.jpg, the models of `OWN_MODELS`, which are small and random, and
the keys and certificates of `workspace`. Each host but 127.0.0.1 in a `serves` comment is another
machine, with a home directory and a working directory of its own. Programs that are not ours have
stand-ins (`other_servers`); llama-server is a real one. Addresses and ports of the page become
free ports of loopback. Where a block uses the server on port 8000 and the page starts none, one
is running, and it is also the one on port 8080 that another Dragoman is to stand in front of;
where it uses Hugging Face or an OTLP collector, a server on loopback stands there.

Blocks of another target are the parameters of its tests (`blocks.run_blocks`), and a test of
`tests/test_doc_commands.py` fails if a target leaves one out. There is no way to have a block of
commands that nothing runs.

Files of settings are checked by `dragoman config`. `dragoman serve` and `make serve` in a block run
until they have answered a request (`answered_command`). `make` runs in the repository; targets that
run this very test or change files are only a dry run. `pip` finds what is installed, and no index.
`curl` fails if the server answers with an error.
"""
