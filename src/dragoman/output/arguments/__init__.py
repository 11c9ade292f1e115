"""Readers of a call's name and arguments, one for each way in which models write them.

Whatever the spelling, arguments are emitted as JSON text while they arrive, and every emitted
prefix can be completed to valid JSON.
"""
