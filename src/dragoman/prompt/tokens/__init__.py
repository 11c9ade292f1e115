"""From the text of a prompt to token ids, within limits.

chat_checks   checks of a chat or of token ids before that
encoding      the pieces of a prompt, one after the other
slices        long texts, slice by slice, with the same ids as in one piece
limit         how long a prompt may be
token_cache   the ids of texts seen before
text_encoder  the part of a tokenizer that this needs
"""
