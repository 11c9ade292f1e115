"""Steps around the renderer: media counts, templates of requests, media in tool results."""
