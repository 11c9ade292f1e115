"""Commands that manage installed models: list, show, pull, create, cp, rm."""
