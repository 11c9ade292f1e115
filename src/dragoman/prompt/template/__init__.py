"""Chat templates: compiled in a sandbox, rendered within a budget, probed for what they accept."""
