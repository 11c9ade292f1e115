"""Tokenizers rebuilt from the files of models, and verified against the engine."""

import os

# The library would hand even one word to other threads, which takes longer than to encode it.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
