"""The gates of all loaded models."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.errors import ENGINE_STOPPED
from dragoman.models.model import Model
from dragoman.pipeline.admission.gate import Gate
from dragoman.types.limits import FindLimits, find_no_limits

DEFAULT_QUEUE = 256
DEFAULT_RESTART_WAIT = 120.0  # seconds


class Admission:
    """The gates of all loaded models. A gate goes away with its model."""

    def __init__(
        self,
        queue: int = DEFAULT_QUEUE,
        find_limits: FindLimits = find_no_limits,
        restart_wait: float = DEFAULT_RESTART_WAIT,
    ) -> None:
        self._queue = queue
        self._find_limits = find_limits
        self._restart_wait = restart_wait  # seconds that requests wait for an engine to restart
        self._gates: WeakKeyDictionary[Model, Gate] = WeakKeyDictionary()

    def get_gate(self, model: Model) -> Gate:
        gate = self._gates.get(model)
        if gate is None:
            gate = self._gates[model] = Gate(
                model.capabilities.slots,
                self._queue,
                self._find_limits,
                shares_compute=model.capabilities.shares_compute,
            )
            engine: object = model.engine
            if isinstance(engine, SubprocessEngine):
                self._follow_restarts(gate, engine)
        return gate

    def update(self, queue: int, restart_wait: float) -> None:
        """Set how many requests may wait for each model, and how long for a restarting engine."""
        self._queue, self._restart_wait = queue, restart_wait
        for gate in self._gates.values():
            gate.resize(queue)

    def _follow_restarts(self, gate: Gate, engine: SubprocessEngine) -> None:
        """Pause the gate whenever the engine is not ready."""

        def update(engine: SubprocessEngine) -> None:
            match engine.state:
                case "ready":
                    gate.resume()
                case "stopped":
                    gate.close(ENGINE_STOPPED)
                case _:
                    gate.pause(self._restart_wait)

        engine.on_state_change.append(update)
        if engine.state != "ready":
            update(engine)
