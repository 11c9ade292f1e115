"""Readers of a call's name and arguments, one for each way that models write them.

Whatever the spelling, arguments are emitted as JSON text while they arrive, so that every prefix
of what was emitted can be completed to valid JSON.
"""
