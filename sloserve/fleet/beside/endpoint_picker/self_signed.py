"""A certificate that a picker makes for itself."""

import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sloserve.core.clock import Clock

_DAYS: Final = 3650


def self_signed(clock: Clock) -> tuple[bytes, bytes]:
    """Return a new key and a certificate that it signs, for gateways that use TLS and verify no certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sloserve endpoint picker")])
    begin = datetime.datetime.fromtimestamp(clock.now_s(), datetime.UTC) - datetime.timedelta(days=1)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    shown = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return shown, made.public_bytes(serialization.Encoding.PEM)
