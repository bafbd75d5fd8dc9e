"""The learner's numbers for Prometheus: `quarl_learner_*`, and `quarl_actor_*` by device.

Every name is listed in docs/guides/flow.md. There is one label, `device`, with names that were checked, of at most
`MAX_DEVICES` devices that are online; who is gone is no longer told. Values are those of the last report, which is at
most a second old; `quarl_learner_report_age_seconds` says how old.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any

from quarl_device.errors import QuarlError
from quarl_edge.learner.receiver import ActorView, FlowReport

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MAX_DEVICES = 256

_LEARNER_COUNTERS = {
    "env_steps": "Environment steps in stored blocks.",
    "updates": "Gradient steps.",
    "pushes": "Policies that went out.",
    "pushes_held_back": "Policies whose ranges did not fit.",
    "blocks": "Blocks stored.",
    "duplicates": "Blocks that came again and were not stored again.",
    "gaps": "Blocks that came before the one that was due.",
    "lost_steps": "Environment steps that were given up or refused.",
    "refused": "Blocks that did not hold.",
    "handler_errors": "Exceptions caught in handlers of messages.",
}
_LEARNER_GAUGES = {
    "env_steps_per_s": ("env_steps_per_second", "Environment steps stored, per second."),
    "updates_per_s": ("updates_per_second", "Gradient steps, per second."),
    "policy_version": ("policy_version", "Version published last."),
    "samples_per_insert": ("samples_per_insert", "How often a transition was sampled, in this session."),
    "replay_size": ("replay_transitions", "Transitions in replay."),
    "replay_capacity": ("replay_capacity_transitions", "Transitions that replay holds."),
    "actors": ("actors_online", "Devices whose last word was a birth."),
}
_ACTOR_COUNTERS = {
    "steps": "Environment steps since the actor's start.",
    "episodes": "Finished episodes since the actor's start.",
    "pushes": "Policies swapped in.",
    "pushes_refused": "Pushes that did not hold.",
    "blocks_resent": "Blocks sent more than once.",
    "blocks_dropped": "Blocks given up.",
    "steps_dropped": "Environment steps in blocks given up.",
}
_ACTOR_GAUGES = {
    "steps_per_s": ("steps_per_second", "Environment steps per second."),
    "blocks_pending": ("blocks_pending", "Blocks not yet durable."),
    "spool_bytes": ("spool_bytes", "Bytes of blocks not yet durable."),
    "return_mean": ("return_mean", "Mean return of the last 100 training episodes."),
}
_LAG_GAUGES = {
    "versions": ("policy_lag_versions", "Versions published since the one that acted."),
    "steps": ("policy_lag_steps", "Environment steps behind the newest policy."),
    "age_s": ("policy_lag_seconds", "Seconds since the policy that acted was replaced."),
}


class Exporter:
    """An HTTP endpoint, `/metrics`, from its making to `close`.

    Args:
        port: to listen on; 0 takes a free one.
        host: address to listen on; whoever reaches it can read all of it.

    Attributes:
        port: that it listens on.

    Raises:
        QuarlError: the port is not to be had.
    """

    def __init__(self, port: int, *, host: str = "127.0.0.1", clock: Callable[[], float] = time.monotonic) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._clock = clock
        self._report: tuple[float, FlowReport] | None = None
        # A registry of its own: nothing of the process but what is said here.
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except (OSError, OverflowError) as error:
            raise QuarlError(
                f"metrics cannot be served at {host}:{port}: {getattr(error, 'strerror', None) or error}",
                hint="another --metrics-port, or --metrics-host",
            ) from error
        self.port: int = self._server.server_port

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def observe(self, report: FlowReport) -> None:
        """Serve `report` from now on."""
        self._report = (self._clock(), report)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        thread: Thread = self._thread
        thread.join(timeout=2.0)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the last report; called by prometheus-client at each scrape."""
        if self._report is None:
            return
        at_s, report = self._report
        yield from _learner(report, age_s=self._clock() - at_s)
        yield from _actors(report)


def _learner(report: FlowReport, *, age_s: float) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    said = dataclasses.asdict(report.learner)
    for field, text in _LEARNER_COUNTERS.items():
        yield CounterMetricFamily(f"quarl_learner_{field}", text, value=said[field])
    for field, (name, text) in _LEARNER_GAUGES.items():
        yield GaugeMetricFamily(f"quarl_learner_{name}", text, value=said[field])
    if report.learner.int8_return is not None:
        yield GaugeMetricFamily(
            "quarl_learner_int8_return", "Judged return of the exported file.", value=report.learner.int8_return
        )
    yield GaugeMetricFamily("quarl_learner_report_age_seconds", "Age of what is told here.", value=age_s)
    waited = CounterMetricFamily(
        "quarl_learner_blocked_seconds", "Seconds that the learner waited, by reason.", labels=["reason"]
    )
    for reason, spent_s in report.blocked_s.items():
        waited.add_metric([reason], spent_s)
    yield waited


def _actors(report: FlowReport) -> Iterator[Metric]:
    devices = dict(sorted(report.actors.items())[:MAX_DEVICES])
    told = {name: dataclasses.asdict(view.telemetry) for name, view in devices.items() if view.telemetry is not None}
    lags = {name: dataclasses.asdict(lag) for name, lag in report.learner.lags.items() if name in devices}
    for field, text in _ACTOR_COUNTERS.items():
        yield _family(f"quarl_actor_{field}", text, _values(told, field), counter=True)
    for gauges, fields in ((_ACTOR_GAUGES, told), (_LAG_GAUGES, lags)):
        for field, (name, text) in gauges.items():
            yield _family(f"quarl_actor_{name}", text, _values(fields, field))
    blocked = ((name, float(_stands_still(view))) for name, view in devices.items())
    yield _family("quarl_actor_blocked", "1 while the actor stands still.", blocked)


def _values(rows: Mapping[str, Mapping[str, Any]], field: str) -> Iterator[tuple[str, float]]:
    return ((device, float(row[field])) for device, row in rows.items())


def _family(name: str, text: str, values: Iterable[tuple[str, float]], *, counter: bool = False) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    family = (CounterMetricFamily if counter else GaugeMetricFamily)(name, text, labels=["device"])
    for device, value in values:
        family.add_metric([device], value)
    return family


def _stands_still(view: ActorView) -> bool:
    return bool(view.state.blocked)
