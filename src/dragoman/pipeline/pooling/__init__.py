"""Requests that are answered with vectors or scores instead of text.

slices  slices of inputs, between which requests of others run
embed   vectors of texts
score   relevance of documents, for reranking
"""
