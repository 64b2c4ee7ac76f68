"""Serve HTTP/3 beside vLLM's TCP port, in the same process and in front of the same application.

The certificates are the ones of vLLM's own ``--ssl-*`` flags. A client certificate is required if ``--ssl-cert-reqs``
requires one of TCP clients. What the listener needs of vLLM's arguments is checked before a model is loaded
(:func:`check`).
"""

import argparse
import logging
from typing import Any

import prometheus_client

from sloserve.core.errors import ConfigError
from sloserve.scheduler.settings import PluginSettings
from sloserve.wire import optional_http3
from sloserve.wire.optional_http3 import Http3Front, Http3Settings, Tls
from sloserve.wire.resolve import Classify

logger = logging.getLogger(__name__)


async def start(front: Http3Front, app: Any, args: Any, settings: PluginSettings, classify: Classify) -> str | None:
    """Start ``front`` if the settings enable HTTP/3, and return its address and the certificate to trust, to print.

    What was checked before the model was loaded may have changed since: then only TCP is served, an error is logged,
    and ``None`` is returned.
    """
    if not settings.http3.enabled:
        return None
    try:
        tls, address = tls_of(args), udp_address(args, settings.http3)
        return await front.listen(app, settings.http3, tls, address, classify, prometheus_client.REGISTRY)
    except ConfigError as error:
        logger.error("HTTP/3 disabled; serving TCP only: %s", error)
    except Exception:
        logger.exception("HTTP/3 disabled; serving TCP only")
    return None


def udp_address(args: argparse.Namespace, settings: Http3Settings) -> tuple[str, int]:
    """Return the host and UDP port of the listener: vLLM's own, unless the settings name another port."""
    return args.host or "0.0.0.0", settings.port or args.port


def tls_of(args: argparse.Namespace) -> Tls:
    """Return the TLS settings that vLLM is given."""
    refresh = getattr(args, "enable_ssl_refresh", False)
    return Tls(args.ssl_certfile, args.ssl_keyfile, args.ssl_ca_certs, args.ssl_cert_reqs, refresh)


def _api_servers(args: argparse.Namespace) -> int:
    """Return how many API servers vLLM will start.

    If the arguments do not say, there is one for each data-parallel engine that vLLM balances itself. Datagrams of one
    UDP port would reach any of them, whichever has the connection.
    """
    if args.api_server_count is not None:
        return int(args.api_server_count)
    multi_port = getattr(args, "data_parallel_multi_port_external_lb", False)
    if multi_port or args.data_parallel_external_lb or args.data_parallel_rank is not None:
        return 1
    if args.data_parallel_hybrid_lb or args.data_parallel_start_rank is not None:
        return args.data_parallel_size_local or 1
    return int(args.data_parallel_size)


def check(args: argparse.Namespace, settings: Http3Settings) -> None:
    """Raise ConfigError for any argument with which the listener cannot work as requested."""
    if not settings.enabled:
        return
    if args.uds or args.headless:
        raise ConfigError(f"--http3 needs a TCP port beside it; leave out {'--uds' if args.uds else '--headless'}")
    count = _api_servers(args)
    if count > 1:
        why = f"--api-server-count {count}" if args.api_server_count else f"the {count} of --data-parallel-size"
        raise ConfigError(
            f"--http3 serves from one API server, not from {why}; give --api-server-count 1, or start several servers"
        )
    optional_http3.check(settings, tls_of(args), udp_address(args, settings))
