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


def check(args: argparse.Namespace, settings: Http3Settings) -> None:
    """Raises: ConfigError for whatever would keep the listener from being what was asked for."""
    if not settings.enabled:
        return
    front.check_installed()
    if args.uds or args.headless:
        raise ConfigError(f"--http3 listens on a port, and {'--uds' if args.uds else '--headless'} leaves none")
    if (args.api_server_count or 1) > 1:
        raise ConfigError(f"--http3 serves from one API server, not --api-server-count {args.api_server_count}")
    front.check(settings, tls_of(args), udp_address(args, settings))
