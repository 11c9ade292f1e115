"""Tokenizers rebuilt from the files of models, and verified against the engine."""
