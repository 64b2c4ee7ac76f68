"""Certificates: one made on the spot for localhost, and files that may change while the server runs."""

import datetime
import ipaddress
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from aioquic.quic.configuration import QuicConfiguration
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sloserve.core.errors import ConfigError

logger = logging.getLogger(__name__)

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
VALID_DAYS = 30

Signer = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def make_certificate(
    names: tuple[str, ...] = LOCAL_NAMES, signer: Signer | None = None, authority: bool = False
) -> Signer:
    """Return a certificate for ``names`` (host names and addresses) and its key, valid for 30 days.

    Args:
        names: Host names and addresses; the first is the subject.
        signer: Certificate and key that sign it; ``None`` for its own key.
        authority: Whether it may sign others; some clients then do not accept it as a server's certificate.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now = datetime.datetime.now(datetime.UTC)  # noqa: TID251 - certificates are dated by the calendar
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if signer is None else signer[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    return builder.sign(key if signer is None else signer[1], hashes.SHA256()), key


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def write_certificate(folder: Path, made: Signer, name: str = "localhost") -> tuple[Path, Path]:
    """Write certificate and key as PEM files into ``folder``, and return both paths.

    Only the owner may read the file of the key.
    """
    certificate, key = made
    cert_file, key_file = folder / f"{name}.crt", folder / f"{name}.key"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    with open(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(pem)
    return cert_file, key_file


@dataclass(slots=True)
class CertificateFiles:
    """The server's certificate and key, read again once a file has changed, if ``refresh`` says so.

    A connection uses what was there when it began. Files that cannot be read leave what was read before.
    """

    certfile: str
    keyfile: str
    refresh: bool = False
    _seen: tuple[int, ...] = field(default=(), init=False)

    def load(self, configuration: QuicConfiguration) -> None:
        """Load certificate and key into a QUIC configuration.

        Raises: ConfigError that names the file.
        """
        self._seen = self._stamps()
        files = f"--ssl-certfile {self.certfile}, --ssl-keyfile {self.keyfile}"
        try:
            configuration.load_cert_chain(self.certfile, self.keyfile)
        except (OSError, ValueError, TypeError, IndexError) as error:
            raise ConfigError(f"{files}: no PEM certificate and key for QUIC: {error}") from error
        if configuration.certificate.public_key() != configuration.private_key.public_key():
            raise ConfigError(f"{files}: the key does not belong to the certificate; give a matching pair")

    def reload_if_changed(self, configuration: QuicConfiguration) -> None:
        if not self.refresh or self._stamps() == self._seen:
            return
        before = configuration.certificate, configuration.certificate_chain, configuration.private_key
        try:
            self.load(configuration)
            logger.info("HTTP/3 uses the new certificate in %s", self.certfile)
        except ConfigError as error:
            configuration.certificate, configuration.certificate_chain, configuration.private_key = before
            logger.warning("HTTP/3 keeps its certificate: %s", error)

    def _stamps(self) -> tuple[int, ...]:
        try:
            return tuple(os.stat(file).st_mtime_ns for file in (self.certfile, self.keyfile))
        except OSError:
            return ()
