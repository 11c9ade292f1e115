"""Managing models: one service for Ollama's API and the command line.

service      list, describe, pull, copy, create and delete models
recipe       what a created model is made of, and the entry of models.yaml that it becomes
modelfile    Ollama's text form of a recipe
blobs        files that clients upload, by their digest
manifest     the digest of a model
model_name   names as Ollama writes them: `name:tag`
"""
