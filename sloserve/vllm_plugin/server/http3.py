"""What ``sloserve serve --http3`` needs of vLLM's arguments; checked before a model is loaded.

Certificates are those of vLLM's own ``--ssl-*`` flags. A client certificate is asked for where ``--ssl-cert-reqs`` has
TCP clients show one.
"""

import argparse

from sloserve.core.errors import ConfigError
from sloserve.quic import front
from sloserve.quic.settings import Http3Settings


def udp_address(args: argparse.Namespace, settings: Http3Settings) -> tuple[str, int]:
    """Where the listener listens: as vLLM's, but UDP."""
    return args.host or "0.0.0.0", settings.port or args.port


def tls_of(args: argparse.Namespace) -> front.Tls:
    """The certificates that vLLM is given."""
    refresh = getattr(args, "enable_ssl_refresh", False)
    return front.Tls(args.ssl_certfile, args.ssl_keyfile, args.ssl_ca_certs, args.ssl_cert_reqs, refresh)


def _api_servers(args: argparse.Namespace) -> int:
    """How many vLLM will start: where it is not told, one for each data-parallel engine that it balances itself.

    Datagrams of one UDP port would reach any of them, whichever has the connection.
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
    """Raises: ConfigError for whatever would keep the listener from being what was asked for."""
    if not settings.enabled:
        return
    front.check_installed()
    if args.uds or args.headless:
        raise ConfigError(f"--http3 needs a TCP port beside it; leave out {'--uds' if args.uds else '--headless'}")
    count = _api_servers(args)
    if count > 1:
        why = f"--api-server-count {count}" if args.api_server_count else f"the {count} of --data-parallel-size"
        raise ConfigError(
            f"--http3 serves from one API server, not from {why}; give --api-server-count 1, or start several servers"
        )
    front.check(settings, tls_of(args), udp_address(args, settings))
