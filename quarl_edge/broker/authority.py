"""A certificate authority of one broker: its own certificate, the broker's, those of its clients, and the revoked ones.

EC P-256 throughout: small enough for a board, and known to every TLS library. No IO: bytes in, bytes out.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from quarl_device.errors import AuthorityError, UsageError

AUTHORITY_DAYS = 20 * 365
_COMMON_NAME = "quarl-edge broker authority"
# A board whose clock is a little behind must not find its certificate to be of the future.
_EARLIER = timedelta(days=1)
_MAX_HOST_CHARS = 253
_MAX_COMMON_NAME = 64


@dataclass(frozen=True, kw_only=True)
class Issued:
    """A key and its certificate. The key never shows in `repr`.

    Attributes:
        key: PEM, secret.
        certificate: PEM.
        serial: of the certificate.
        expires: when it ends.
    """

    key: bytes
    certificate: bytes
    serial: int
    expires: datetime

    def __repr__(self) -> str:
        return f"Issued(serial={self.serial:x}, expires={self.expires:%Y-%m-%d})"


class Authority:
    """Issues and revokes certificates.

    Args:
        certificate: its own.
        key: the secret that signs.

    Raises:
        AuthorityError: the two do not belong together.
    """

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        if certificate.public_key() != key.public_key():
            raise AuthorityError(
                "the authority's key and certificate do not belong together",
                hint="restore both from a copy, or make new ones: quarl-edge broker init DIR --replace-ca",
            )
        self._certificate = certificate
        self._key = key

    def __repr__(self) -> str:
        return f"Authority({self.fingerprint[:16]}...)"

    @classmethod
    def create(cls, *, now: datetime) -> Authority:
        """Make a new one."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(_COMMON_NAME)
        builder = _builder(name, name, key.public_key(), begins=now, ends=now + timedelta(days=AUTHORITY_DAYS))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def from_pem(cls, certificate: bytes, key: bytes) -> Authority:
        """Read one back.

        Raises:
            AuthorityError: not PEM, not EC, or not belonging together.
        """
        try:
            loaded = serialization.load_pem_private_key(key, password=None)
            own = x509.load_pem_x509_certificate(certificate)
        except (ValueError, TypeError) as error:
            raise AuthorityError("the authority's key or certificate is damaged: no PEM") from error
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise AuthorityError("the authority's key is no EC key")
        return cls(own, loaded)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate, in hex, to be compared by eye."""
        return self._certificate.fingerprint(hashes.SHA256()).hex()

    @property
    def certificate_pem(self) -> bytes:
        """What clients trust."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The secret."""
        return _pem(self._key)

    def issue_server(self, hosts: Sequence[str], *, lifetime: timedelta, now: datetime) -> Issued:
        """Issue the broker's certificate.

        Args:
            hosts: names and addresses by which clients reach it, one at least.
            lifetime: cut to the authority's own.
            now: this host's clock.

        Raises:
            UsageError: a host that is neither a name nor an address.
        """
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        return self._issue(hosts[0][:_MAX_COMMON_NAME], ExtendedKeyUsageOID.SERVER_AUTH, names, lifetime, now)

    def issue_client(self, name: str, *, lifetime: timedelta, now: datetime) -> Issued:
        """Issue a client's certificate; its common name is what the broker takes for user name and client id."""
        return self._issue(name, ExtendedKeyUsageOID.CLIENT_AUTH, None, lifetime, now)

    def revocation_list(self, revoked: Iterable[tuple[int, datetime]], *, now: datetime) -> bytes:
        """Return the signed list of revoked certificates (PEM).

        It says to be good for as long as the authority: a broker lets nobody in once its list is out of date.

        Args:
            revoked: serial numbers and when they were revoked.
            now: this host's clock.
        """
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(now - _EARLIER)
            .next_update(self._certificate.not_valid_after_utc)
        )
        for serial, when in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(when).build()
            builder = builder.add_revoked_certificate(entry)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _issue(
        self,
        common_name: str,
        purpose: x509.ObjectIdentifier,
        names: x509.SubjectAlternativeName | None,
        lifetime: timedelta,
        now: datetime,
    ) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        ends = min(now + lifetime, self._certificate.not_valid_after_utc)
        builder = _builder(_name(common_name), self._certificate.subject, key.public_key(), begins=now, ends=ends)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Issued(
            key=_pem(key),
            certificate=certificate.public_bytes(serialization.Encoding.PEM),
            serial=certificate.serial_number,
            expires=certificate.not_valid_after_utc,
        )


def read_server_certificate(pem: bytes) -> tuple[tuple[str, ...], datetime]:
    """Return the hosts that a broker's certificate names, and when it ends.

    Raises:
        AuthorityError: no certificate, or one that names no hosts.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise AuthorityError("the broker's certificate is damaged") from error
    return tuple(str(name.value) for name in names), certificate.not_valid_after_utc


def check_served(authority: bytes, server: bytes, revoked: bytes) -> None:
    """Check that what a broker shows and reads comes from its clients' authority.

    Args:
        authority: its certificate, PEM.
        server: the broker's key and certificate, PEM.
        revoked: the list of revoked certificates, PEM.

    Raises:
        AuthorityError: damaged, of another authority, or a key and a certificate that do not belong together.
    """
    try:
        issuer = x509.load_pem_x509_certificate(authority)
        certificate = x509.load_pem_x509_certificate(server)
        key = serialization.load_pem_private_key(server, password=None)
        listed = x509.load_pem_x509_crl(revoked)
        certificate.verify_directly_issued_by(issuer)
        public = issuer.public_key()
        ours = isinstance(public, ec.EllipticCurvePublicKey) and listed.is_signature_valid(public)
    except InvalidSignature:
        raise AuthorityError("the broker's certificate is not of the authority in ca.crt") from None
    except (ValueError, TypeError) as error:
        raise AuthorityError("the broker's key, certificate or list of revoked ones is damaged") from error
    if certificate.public_key() != key.public_key():
        raise AuthorityError("the broker's key and certificate do not belong together")
    if not ours:
        raise AuthorityError("the list of revoked certificates is not of the authority in ca.crt")


def check_host(host: str) -> str:
    """Return `host` if a certificate can name it.

    Raises:
        UsageError: neither a host name nor an IP address.
    """
    _general_name(host)
    return host


def utc_now() -> datetime:
    """Return this host's clock, to the second, as certificates have it."""
    return datetime.now(UTC).replace(microsecond=0)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.split(".")
    fits = 0 < len(host) <= _MAX_HOST_CHARS and host.isascii()
    if not fits or not all(label and label.replace("-", "").replace("_", "").isalnum() for label in labels):
        raise UsageError(f"bad host {host[:80]!r}: expected a name such as broker.local, or an IP address")
    return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, *, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins - _EARLIER)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
