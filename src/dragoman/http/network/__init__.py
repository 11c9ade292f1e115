"""Between the system and a connection: sockets, TLS, file descriptors, transports, hand-over."""
