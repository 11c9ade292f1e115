"""Requests that are answered with vectors or scores instead of text.

turns   slices of inputs, which take turns with the requests of others
embed   vectors of texts
score   relevance of documents, for reranking
"""
