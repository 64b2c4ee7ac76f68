"""What ``sloserve serve --http3`` needs of vLLM's arguments; checked before a model is loaded.

Certificates are those of vLLM's own ``--ssl-*`` flags. A client certificate is asked for where ``--ssl-cert-reqs`` has
TCP clients show one.
"""

import argparse
import importlib.util
import ssl

from sloserve.core.errors import ConfigError
from sloserve.quic.settings import Http3Settings
from sloserve.vllm_plugin.server.serve import is_exposed

EXTRA = "pip install 'sloserve[http3]'"


def udp_address(args: argparse.Namespace, settings: Http3Settings) -> tuple[str, int]:
    """Where the listener listens: as vLLM's, but UDP."""
    return args.host or "0.0.0.0", settings.port or args.port


def client_authorities(args: argparse.Namespace) -> str | None:
    """Who must have signed a client's certificate; ``None`` where clients need none."""
    authorities: str | None = args.ssl_ca_certs
    return authorities if args.ssl_cert_reqs == ssl.CERT_REQUIRED else None


def check(args: argparse.Namespace, settings: Http3Settings) -> None:
    """Raises: ConfigError for whatever would keep the listener from being what was asked for."""
    if not settings.enabled:
        return
    if importlib.util.find_spec("aioquic") is None:
        raise ConfigError(f"--http3 needs aioquic, which is not installed: {EXTRA}")
    if args.uds or args.headless:
        raise ConfigError(f"--http3 listens on a port, and {'--uds' if args.uds else '--headless'} leaves none")
    if (args.api_server_count or 1) > 1:
        raise ConfigError(f"--http3 serves from one API server, not --api-server-count {args.api_server_count}")
    if settings.self_signed and args.ssl_certfile:
        raise ConfigError("--http3-self-signed beside --ssl-certfile: give one of them")
    if settings.self_signed and is_exposed(args.host):
        raise ConfigError(
            f"--http3-self-signed is for localhost, and the server listens on {args.host}; give --ssl-certfile"
        )
    if not settings.self_signed and not (args.ssl_certfile and args.ssl_keyfile):
        raise ConfigError(
            "--http3 needs a certificate: --ssl-certfile and --ssl-keyfile, or --http3-self-signed for localhost"
        )
    if args.ssl_cert_reqs == ssl.CERT_REQUIRED and not args.ssl_ca_certs:
        raise ConfigError(
            "--ssl-cert-reqs 2 asks clients for a certificate; --ssl-ca-certs says who may have signed it"
        )
    _try_out(args, settings)


def _try_out(args: argparse.Namespace, settings: Http3Settings) -> None:
    from aioquic.quic.configuration import QuicConfiguration

    from sloserve.quic import self_check
    from sloserve.quic.certificates import CertificateFiles
    from sloserve.quic.listener import bound

    self_check.check(settings.scheduler)
    bound(*udp_address(args, settings)).close()
    if not settings.self_signed:
        CertificateFiles(args.ssl_certfile, args.ssl_keyfile).load(QuicConfiguration(is_client=False))
