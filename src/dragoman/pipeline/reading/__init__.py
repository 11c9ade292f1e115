"""What the readers of an answer use: steps of one token, counts of tokens, limits of calls."""
