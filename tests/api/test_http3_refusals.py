"""What ``sloserve serve --http3`` refuses, each in one line, before a model is loaded."""

import argparse
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from sloserve.api.http3 import check
from sloserve.core.errors import ConfigError
from sloserve.http3.certificates import make_certificate, write_certificate
from sloserve.wire.optional_http3 import Http3Settings
from tests.ports import free_port

SELF_SIGNED = {"self_signed": True}


def arguments(**given: Any) -> argparse.Namespace:
    stock = {"host": "127.0.0.1", "port": 8000, "uds": None, "headless": False, "api_server_count": None}
    files = {"ssl_certfile": None, "ssl_keyfile": None, "ssl_ca_certs": None, "ssl_cert_reqs": int(ssl.CERT_NONE)}
    ranks = {"data_parallel_size": 1, "data_parallel_size_local": None, "data_parallel_rank": None}
    ranks |= {"data_parallel_start_rank": None, "data_parallel_external_lb": False, "data_parallel_hybrid_lb": False}
    return argparse.Namespace(**{**stock, **files, **ranks, **given})


@pytest.mark.parametrize(
    ("given", "settings", "says"),
    [
        ({}, {}, "needs a certificate: --ssl-certfile and --ssl-keyfile, or --http3-self-signed for localhost"),
        ({"uds": "/x"}, SELF_SIGNED, "needs a TCP port beside it; leave out --uds"),
        ({"headless": True}, SELF_SIGNED, "needs a TCP port beside it; leave out --headless"),
        (
            {"api_server_count": 2},
            SELF_SIGNED,
            "from one API server, not from --api-server-count 2; give --api-server-c",
        ),
        ({"data_parallel_size": 2}, SELF_SIGNED, "from one API server, not from the 2 of --data-parallel-size; give"),
        ({"host": "0.0.0.0"}, SELF_SIGNED, "--http3-self-signed is for localhost, and the server listens on 0.0.0.0"),
        (
            {"ssl_certfile": "a"},
            SELF_SIGNED,
            "--http3-self-signed and --ssl-certfile exclude each other; give one of them",
        ),
        ({"ssl_certfile": "no", "ssl_keyfile": "no"}, {}, "--ssl-certfile no, --ssl-keyfile no: no PEM certificate"),
        ({"ssl_cert_reqs": 2}, SELF_SIGNED, "--ssl-cert-reqs 2 asks clients for a certificate; name the authorities"),
    ],
)
def test_refusals(given: dict[str, Any], settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        check(arguments(**{"port": free_port(socket.SOCK_DGRAM), **given}), made(**settings))
    assert "\n" not in str(refused.value)


def made(**settings: Any) -> Http3Settings:
    return Http3Settings(enabled=True, **settings)


def test_a_port_that_is_taken_is_refused_and_one_that_is_free_is_left_so(tmp_path: Path) -> None:
    files = write_certificate(tmp_path, make_certificate())
    port = free_port(socket.SOCK_DGRAM)
    args = arguments(ssl_certfile=str(files[0]), ssl_keyfile=str(files[1]), port=port)
    check(args, made())
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", port))
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 UDP port {port}: Address already in use"):
            check(args, made())
        check(arguments(), Http3Settings())  # without --http3 nothing is looked at


def test_without_aioquic_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sloserve.http3.beside_tcp", raising=False)
    monkeypatch.setitem(sys.modules, "aioquic.quic.configuration", None)
    with pytest.raises(ConfigError, match=r"needs aioquic.*, which is not installed: pip install -e '\.\[http3\]'"):
        check(arguments(), made())
