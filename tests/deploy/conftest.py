"""The scrape of a server, for what asks Prometheus."""

from tests.grafana.conftest import metrics_text

__all__ = ["metrics_text"]
