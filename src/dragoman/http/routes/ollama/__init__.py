"""Routes of Ollama's API that generate and embed; `ollama_models` has those that manage models."""

from dragoman.http.routes.ollama.generation import make_routes as make_routes
