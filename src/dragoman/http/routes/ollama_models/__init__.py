"""Routes of Ollama's API that list, describe and change models.

handlers       the routes
descriptions   models as they are listed and described
progress       answers that report the progress of a change
blob_upload    receives the files that models are created from
"""

from dragoman.http.routes.ollama_models.handlers import make_routes

__all__ = ["make_routes"]
