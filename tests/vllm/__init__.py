"""Tests with a real vLLM, which `make test-vllm` installs and runs."""
