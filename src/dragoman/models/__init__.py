"""Models: which there are, what each name means, and who is loaded."""
