"""Pictures and sound in GGUF models: their projector files, and prompts with media."""
