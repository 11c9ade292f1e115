"""Finding out what runs at the address of an upstream server.

sources            the models of a server in the catalog
discover           all that must be known before a model is served: a `Discovery`
probe_client       small JSON requests to the server
identify           which kind of server it is, and what it serves: a `ServerInfo`
llama_server, vllm, sglang, dragoman, openai_compatible
                   what each kind of server says about itself
server_info        the data types of that
versions           request fields that a version of a server ignores
tokenizer_files    the tokenizer and the template: from the server, a directory, a GGUF or the hub
compare_ids        whether that tokenizer is the one of the server
limitations        what a model of such a server does not support, in sentences
"""
