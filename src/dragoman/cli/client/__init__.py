"""How commands talk to a server: over HTTP to a running one, or to an app in this process.

transport         one request and its response; the interface that both transports implement
server_transport  requests to a running server
local_transport   requests to an app that runs in a thread of this process, without a socket
client            the requests that commands make, over either transport
arguments         the arguments of commands that use either
connect           chooses between a running server and a model that is loaded here
"""
