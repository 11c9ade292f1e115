"""Turns conversations into prompts: `renderer` has the theory of operation."""
