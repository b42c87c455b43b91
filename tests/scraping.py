"""What a server's /metrics say, and what they said before."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from live_server import LiveServer
from waiting import until

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(server: LiveServer) -> Samples:
    """(name without the prefix, labels besides model and engine) → value."""
    found: Samples = {}
    for family in text_string_to_metric_families(server.get("/metrics").text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
            name = sample.name.removeprefix("headrace:")
            found[name, tuple(sorted(labels.items()))] = sample.value
    return found


class Change:
    """What happened to the metrics between two looks."""

    def __init__(self, server: LiveServer) -> None:
        self._server = server
        self._before = scrape(server)

    def of(self, name: str, **labels: str) -> float:
        key = name, tuple(sorted(labels.items()))
        return scrape(self._server)[key] - self._before.get(key, 0.0)

    def settles(self, name: str, value: float, **labels: str) -> None:
        """Waits until a count is told: an abandoned request ends a moment later."""
        until(lambda: self.of(name, **labels) == value, f"{name} is {value}")
