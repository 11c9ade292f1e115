"""State that lasts: responses, their events, conversations, and small things, in a database."""
