"""Tokenizers: text to token ids and back, from whatever file describes them."""
