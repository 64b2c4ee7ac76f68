"""Certificates of agents on other hosts, signed by an authority that is the fleet's own.

One folder has all of them. Agents and gateways are checked by ``authority.crt``; ``authority.pem``, with its key, is
needed only to make certificates. ``host-NAME.pem`` is the key and certificate with which the agent of the host NAME
proves that name, and ``gateway.pem`` is what gateways show. Files with keys are their owner's alone, and are replaced
whole: a reader has the old or the new key with its own certificate.
"""

import datetime
import ipaddress
import logging
import os
import re
import ssl
from collections.abc import Collection
from pathlib import Path
from typing import Final
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sloserve.core.clock import Clock, SystemClock
from sloserve.core.errors import ConfigError
from sloserve.core.file_lock import one_at_a_time

logger = logging.getLogger(__name__)

VALID_DAYS: Final = 90.0
"""Days for which the certificate of a host or of the gateways is valid."""
RENEWED_DAYS: Final = 30.0
"""Days left at which a certificate is renewed."""
AUTHORITY_DAYS: Final = 3_650.0
_DAY_S: Final = 86_400.0
_EARLY_S: Final = 3_600.0
"""Seconds by which a certificate is valid before it was made: clocks of hosts differ."""
_LONGEST_NAME: Final = 64
_NAME: Final = re.compile(rf"(?!\.)[\w.-]{{1,{_LONGEST_NAME}}}", re.ASCII)
_MAKING_S: Final = 10.0
"""Longest wait, in seconds, for another process that makes certificates in the folder: it takes milliseconds."""
_AUTHORITY, _GATEWAY = "authority", "gateway"

Pair = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


class Certificates:
    """The certificates in one folder, which may hold only the own certificate and ``authority.crt``."""

    def __init__(self, folder: Path, clock: Clock | None = None, *, of_gateways: bool = False) -> None:
        """Use the certificates in ``folder``; with ``of_gateways`` agents ask gateways for a certificate, too."""
        self._folder, self._clock, self._of_gateways = folder, clock or SystemClock(), of_gateways
        self._contexts: list[tuple[ssl.SSLContext, Path | None]] = []
        self._read: dict[Path, int] = {}

    # These methods make certificates.

    def issue(self, hosts: Collection[str]) -> list[Path]:
        """Make certificates that are missing or end soon, and return the new files.

        They are the authority, the gateways' certificate, and one for each of ``hosts`` and for each host that has one.
        Call this in one process at a time: two that began together would make two authorities.

        Raises: ConfigError for a host name that no certificate can have, and for files that cannot be read or written.
        """
        for host in hosts:
            _name(host)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with one_at_a_time(self._folder / ".lock", _MAKING_S):
                return self._issue(hosts)
        except OSError as error:
            raise ConfigError(f"certificates in {self._folder} cannot be made: {error.strerror or error}") from None

    def _issue(self, hosts: Collection[str]) -> list[Path]:
        made = [] if self._has_authority() else [self._new_authority()]
        authority = _pair(self._file(_AUTHORITY))
        if not self._trusted.exists():  # it is new, or the process that made it died here
            _write(self._trusted, authority[0].public_bytes(Encoding.PEM), 0o644)
        if self._left_s(authority[0]) < VALID_DAYS * _DAY_S:
            end = f"{authority[0].not_valid_after_utc:%Y-%m-%d}"
            raise ConfigError(
                f"{self._file(_AUTHORITY)}: the fleet's authority ends on {end}, before a certificate "
                "that it would sign; move the folder away and make all certificates again"
            )
        wanted = {self._file(_GATEWAY): "gateway"} | {self._host(host): host for host in hosts}
        for file in self._folder.glob("host-*.pem"):
            wanted.setdefault(file, _named(_pair(file)[0]))
        for file, name in sorted(wanted.items()):
            if not file.exists() or self._left_s(_pair(file)[0]) < RENEWED_DAYS * _DAY_S:
                self._sign(file, name, authority)
                made.append(file)
        return made

    def _has_authority(self) -> bool:
        is_there = self._file(_AUTHORITY).exists()
        if not is_there and self._trusted.exists():
            raise ConfigError(
                f"{self._folder} has no {_AUTHORITY}.pem: certificates are made where the fleet's authority was made"
            )
        return is_there

    def _new_authority(self) -> Path:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject("sloserve fleet authority")
        made = (
            self._builder(subject, subject, key, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(is_authority=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        _write(self._file(_AUTHORITY), _pem(key) + made.public_bytes(Encoding.PEM), 0o600)
        return self._file(_AUTHORITY)

    def _sign(self, file: Path, name: str, authority: Pair) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if file == self._file(_GATEWAY) else ExtendedKeyUsageOID.SERVER_AUTH
        signer = authority[0].public_key()
        assert isinstance(signer, ec.EllipticCurvePublicKey)
        made = (
            self._builder(_subject(name), authority[0].subject, key, VALID_DAYS)
            .add_extension(x509.SubjectAlternativeName([_name(name)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
            .sign(authority[1], hashes.SHA256())
        )
        _write(file, _pem(key) + made.public_bytes(Encoding.PEM), 0o600)

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
    ) -> x509.CertificateBuilder:
        now_s = self._clock.now_s()
        begin, end = (
            datetime.datetime.fromtimestamp(at_s, datetime.UTC) for at_s in (now_s - _EARLY_S, now_s + days * _DAY_S)
        )
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )

    # These methods show and check certificates.

    def of_endpoint(self, host: str) -> ssl.SSLContext:
        """Return the TLS context of a host's agent; its certificate is made where the authority's key is.

        Raises: ConfigError where it is missing, another host's, or has ended.
        """
        if self._file(_AUTHORITY).exists():
            self.issue([host])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self._of_gateways:
            context.verify_mode = ssl.CERT_REQUIRED
        return self._made(context, self._host(host), host)

    def of_gateway(self) -> ssl.SSLContext:
        """Return the TLS context for connections to agents, which must prove their host. Raises: ConfigError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        own = self._file(_GATEWAY)
        return self._made(context, own if own.exists() or self._of_gateways else None, "gateway")

    def refresh(self) -> None:
        """Renew what ends soon, where the authority's key is, and use new files for later connections.

        Files that cannot be read are logged, and leave what was read before.
        """
        try:
            if self._file(_AUTHORITY).exists():
                for file in self.issue(()):
                    logger.info("%s: renewed for %.0f days", file, VALID_DAYS)
            for context, own in self._contexts:
                if own is not None and self._read.get(own) != own.stat().st_mtime_ns:
                    self._load(context, own)
                    logger.info("%s: new connections use the renewed certificate", own)
                if own is not None and (left_s := self._left_s(_certificate(own))) < RENEWED_DAYS / 3 * _DAY_S:
                    logger.error("%s: ends in %.1f days; %s", own, left_s / _DAY_S, _REMEDY)
        except (ConfigError, OSError, ValueError) as error:
            logger.error("certificates of agents are not renewed: %s", error)

    def _made(self, context: ssl.SSLContext, own: Path | None, name: str) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_verify_locations(self._trusted)
            if own is not None:
                certificate = _certificate(own)
                if _named(certificate) != name:
                    raise ConfigError(f"{own}: is the certificate of {_named(certificate)}, not of {name}; {_REMEDY}")
                if self._left_s(certificate) <= 0.0:
                    raise ConfigError(f"{own}: expired on {certificate.not_valid_after_utc:%Y-%m-%d}; {_REMEDY}")
                authority = x509.load_pem_x509_certificates(self._trusted.read_bytes())[0]
                try:
                    certificate.verify_directly_issued_by(authority)
                except Exception:
                    raise ConfigError(f"{own}: is not signed by {self._trusted}; {_REMEDY}") from None
                self._load(context, own)
        except FileNotFoundError as error:
            missing = error.filename or self._trusted
            raise ConfigError(f"{missing}: there is no such certificate; {_REMEDY}") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"certificates in {self._folder} cannot be read: {error}; {_REMEDY}") from None
        self._contexts.append((context, own))
        return context

    def _load(self, context: ssl.SSLContext, own: Path) -> None:
        at = own.stat().st_mtime_ns
        context.load_cert_chain(own)
        self._read[own] = at

    # These methods give places and times.

    @property
    def _trusted(self) -> Path:
        return self._folder / f"{_AUTHORITY}.crt"

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.pem"

    def _host(self, host: str) -> Path:
        return self._file(f"host-{quote(host, safe='')}")

    def _left_s(self, certificate: x509.Certificate) -> float:
        return certificate.not_valid_after_utc.timestamp() - self._clock.now_s()


_REMEDY: Final = (
    "make it with sloserve fleet certificates FILE where the fleet's authority is, and copy authority.crt and "
    "host-NAME.pem to the host, gateway.pem to gateways"
)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _name(host: str) -> x509.GeneralName:
    """Return the name in the form of a certificate.

    Raises: ConfigError for a name that TLS does not accept as a server name.
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        if not _NAME.fullmatch(host):  # a * would stand for the names of others
            raise ValueError
        host.encode("idna")
        return x509.DNSName(host)
    except ValueError:
        raise ConfigError(
            f"host {host}: cannot be the name of a certificate; give it one of at most {_LONGEST_NAME} letters, "
            "digits, - and ."
        ) from None


def _named(certificate: x509.Certificate) -> str:
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _pair(file: Path) -> Pair:
    """Return the key and certificate in a file. Raises: ConfigError for a file that lacks one of them; OSError."""
    text = file.read_bytes()
    try:
        key = load_pem_private_key(text, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return x509.load_pem_x509_certificate(text), key
    except (ValueError, TypeError, AssertionError):
        raise ConfigError(f"{file}: is not a key and certificate of the fleet; restore it, or delete it") from None


def _certificate(file: Path) -> x509.Certificate:
    return _pair(file)[0]


def _write(file: Path, text: bytes, mode: int) -> None:
    """Replace the file as a whole."""
    scratch = file.with_suffix(f".{os.getpid()}.new")
    try:
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        scratch.replace(file)
    finally:
        scratch.unlink(missing_ok=True)
