"""Whether the server can serve requests now.

The model that the server was started for decides, or else the default one: the server is ready once
it is loaded, and not ready while its engine restarts. Other models load and restart on demand.
"""

from __future__ import annotations

from dragoman.errors import ModelLoading, Unavailable
from dragoman.http.metrics import Metrics
from dragoman.http.respond import Responder
from dragoman.models.registry import ModelRegistry

# how an engine failed, as clients read it
FAILURES = {
    "died": "stopped unexpectedly and is being restarted",
    "hung": "made no progress and is being restarted",
    "load_failed": "could not be started and is being restarted",
    # of upstream servers
    "stalled": "makes no progress",
    "refused": "cannot be reached",
    "tls": "cannot be reached: its certificate cannot be verified",
    "invalid": "returned invalid answers",
    "replaced": "runs another model than this server was started with",
    "smaller_context": "has a smaller context than this server was started with",
}


class Readiness:
    """Finds out whether requests can be served now."""

    def __init__(self, responder: Responder, registry: ModelRegistry, metrics: Metrics) -> None:
        self._responder = responder
        self._registry = registry
        self._metrics = metrics
        self.startup_model: str | None = None
        """Must be loaded before the server is ready; "" is the default model, once it is known."""
        self._main_model: str | None = None  # the start-up model, once it was loaded

    def end_startup(self, model: str) -> None:
        """Record that the start-up model was loaded; if it is unloaded, it is loaded on demand."""
        self._main_model, self.startup_model = model, None

    def check(self) -> None:
        """Raise the error that says why requests cannot be served now; return if they can."""
        if self._responder.drain_seconds is not None:
            raise self._responder.make_draining_error()
        listing_error = self._registry.catalog.listing_error
        if listing_error is not None:
            raise Unavailable(listing_error.message, retry_after=listing_error.retry_after)
        if self.startup_model is not None:
            entry = self._registry.get(self.startup_model or self._registry.default_name)
            if entry.state == "failed" and entry.error is not None:  # it is tried again
                raise Unavailable(entry.error, retry_after=1)
            if entry.state != "ready":
                raise ModelLoading(f"The model `{entry.id}` is loading.", retry_after=1)
            self.end_startup(entry.id)
        main = self._main_model or self._registry.default_name
        for state in self._metrics.get_model_states():
            if state.model == main and not state.is_up:
                problem = FAILURES.get(state.failure, "is being restarted")
                raise Unavailable(
                    f"The engine of `{main}` {problem}.", retry_after=state.retry_after
                )
