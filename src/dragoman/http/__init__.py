"""HTTP: the app, the layers around it, and the server that runs it."""
