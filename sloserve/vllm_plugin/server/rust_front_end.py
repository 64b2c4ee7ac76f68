"""Serve the metrics of an engine under vLLM's Rust front end, on a port of their own.

That front end (``VLLM_USE_RUST_FRONTEND=1``) runs no Python, so nothing of the API process exists. The engine reads
SLOs from ``vllm_xargs`` and publishes its figures all the same. The process that started it can read them.
"""

import logging
import os
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server

from sloserve.core.errors import ConfigError
from sloserve.engine.metrics.engine_metrics import PageCollector
from sloserve.engine.metrics.engine_page import find_pages

logger = logging.getLogger(__name__)

RUST_FRONT_END: Final = "VLLM_USE_RUST_FRONTEND"
METRICS_PORT: Final = "SLOSERVE_METRICS_PORT"
"""The environment's variable with a port, or ``HOST:PORT``; without a host the loopback interface is meant."""

_LOOPBACK = "127.0.0.1"
_serving: set[str] = set()


def is_used() -> bool:
    """Return whether ``vllm serve`` would start vLLM's Rust front end."""
    return os.environ.get(RUST_FRONT_END, "0") not in ("", "0")


def serve_metrics() -> None:
    """Serve the metrics of the schedulers that this process starts, if the front end is Rust and a port is named.

    A second call changes nothing. A port that is not free is logged, and the engine starts without these metrics: of
    several processes on a host with one environment the first serves them. Raises: ConfigError for a value that is no
    port.
    """
    value = os.environ.get(METRICS_PORT, "")
    if not is_used() or not value or value in _serving:
        return
    host, _, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{METRICS_PORT}: {value!r} is not PORT or HOST:PORT with a port from 1 to 65535")
    registry = CollectorRegistry()
    registry.register(PageCollector(lambda: [page.snapshot() for page in find_pages()]))
    try:
        start_http_server(int(port), host or _LOOPBACK, registry)
    except OSError as error:
        logger.warning(
            "%s: cannot listen on %s port %s (%s); this process serves no metrics, give each its own port",
            METRICS_PORT, host or _LOOPBACK, port, error,
        )  # fmt: skip
        return
    finally:
        _serving.add(value)
    logger.info("sloserve serves the schedulers' metrics on http://%s:%s/metrics", host or _LOOPBACK, port)
