"""Models: which are installed (`catalog`), which are loaded (`registry`, `residency`), downloads.

A loaded `Model` holds its engine, tokenizer, chat template and output format.
"""
