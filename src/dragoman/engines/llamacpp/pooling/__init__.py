"""Embeds texts and scores pairs of texts, with a second native server of the model.

head      what a model file says about its pooling: vectors, or scores of pairs
batches   the inputs of all calls, computed in shared batches
server    the native server that computes them, started with the first call
"""
