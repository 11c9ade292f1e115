"""Managing models: one service for Ollama's API and the command line.

service        pull, copy, create and delete models
recipe         what a created model is made of, and the entry of models.yaml that it becomes
modelfile      Ollama's text form of a recipe
mapping_file   edits models.yaml
blobs          files that clients upload, by their digest
deletion       which files belong to a model
manifest       the digest of a model
model_name     names as Ollama writes them: `name:tag`
"""
