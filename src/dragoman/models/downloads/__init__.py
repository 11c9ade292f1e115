"""How models are downloaded: the default one from a package index, others from Hugging Face."""
