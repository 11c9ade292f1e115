"""What vLLM's scheduler reports about itself after each step."""

from __future__ import annotations

from dragoman.engines.vllm.native import Native


class SchedulerStatistics:
    """The latest numbers of the scheduler, and sums of those that it reports step by step.

    With data parallelism, each engine has numbers of its own; gauges are summed.
    """

    def __init__(self) -> None:
        self._engines: dict[int, Native] = {}
        self._cache_queries = self._cache_hits = 0

    def record(self, stats: Native, engine_index: int = 0) -> None:
        """Take the `SchedulerStats` of a step."""
        if stats is None:
            return
        self._engines[engine_index] = stats
        cache = getattr(stats, "prefix_cache_stats", None)
        if cache is not None:
            self._cache_queries += cache.queries
            self._cache_hits += cache.hits

    def read(self) -> dict[str, float]:
        """Return the numbers by name."""
        engines = self._engines.values()
        if not engines:
            return {}
        usage = [float(stats.kv_cache_usage) for stats in engines]
        return {
            "running_requests": float(sum(stats.num_running_reqs for stats in engines)),
            "waiting_requests": float(sum(stats.num_waiting_reqs for stats in engines)),
            "kv_cache_usage_ratio": sum(usage) / len(usage),
            "prefix_cache_queries": float(self._cache_queries),
            "prefix_cache_hits": float(self._cache_hits),
        }

    def make_logger(self, _config: Native, _engine_index: int = 0) -> StepLogger:
        """Make what vLLM calls after each step, if it reads the outputs itself."""
        return StepLogger(self)


class StepLogger:
    """A stat logger in vLLM's sense."""

    def __init__(self, statistics: SchedulerStatistics) -> None:
        self._statistics = statistics

    def record(
        self,
        scheduler_stats: Native = None,
        iteration_stats: Native = None,
        mm_cache_stats: Native = None,
        engine_idx: int = 0,
    ) -> None:
        self._statistics.record(scheduler_stats, engine_idx)

    def log_engine_initialized(self) -> None:
        pass

    def log(self) -> None:
        pass

    def record_sleep_state(self, is_awake: int = 0, level: int = 0) -> None:
        pass
