"""Clients of Ollama's API from other ecosystems; `make test-ollama` installs and runs them."""
