"""HTTP/1.1 to an upstream server: connections that are kept alive, and server-sent events."""
