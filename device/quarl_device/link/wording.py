"""What a link says when a broker refuses or goes away: what happened, and what to do."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from quarl_device.errors import BrokerNotTrusted, BrokerRefused, CertificateRefused
from quarl_device.names import PASSWORD_VARIABLE

_BAD_CLIENT_ID, _BAD_LOGIN, _NOT_ALLOWED = 133, 134, 135
_WAYS = f"{PASSWORD_VARIABLE} or --password-file"
_OR_A_CERTIFICATE = ", or a certificate that it lets in with --credentials DIR"
_RENEW = "enroll it again: quarl-edge enroll NAME --renew"
# By a part of OpenSSL's name for the alert that came.
_ALERTS = {
    "CERTIFICATE_REQUIRED": ("it wants a client certificate and none was given", "--credentials DIR"),
    "CERTIFICATE_REVOKED": (
        "this client's certificate is revoked",
        "quarl-edge enroll NAME makes another; put it in the place of this one, and start again",
    ),
    "CERTIFICATE_EXPIRED": ("this client's certificate has expired", _RENEW),
    "UNKNOWN_CA": ("this client's certificate is of an authority that the broker does not know", _RENEW),
    "UNSUPPORTED_CERTIFICATE": ("this client's certificate is not one for clients", _RENEW),
    "BAD_CERTIFICATE": ("this client's certificate does not hold", _RENEW),
    "CERTIFICATE_UNKNOWN": ("this client's certificate does not hold", _RENEW),
    # What TLS 1.2 says where there is no certificate, among other things.
    "HANDSHAKE_FAILURE": ("the TLS handshake failed; does it want a client certificate?", "--credentials DIR"),
}
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING")
_X509_EXPIRED, _X509_NOT_YET_VALID, _X509_HOST, _X509_ADDRESS = 10, 9, 62, 64


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a broker refused a client.

    Attributes:
        reason: what it said, as far as it can be known.
        hint: what mends it, "" if nobody can say.
        final: trying again cannot mend it.
        error: what to raise where it is final.
    """

    reason: str
    hint: str = ""
    final: bool = True
    error: type[BrokerRefused] = BrokerRefused


def refusal(code: int, *, password_given: bool, tls: bool = False) -> Refusal:
    """Return what a CONNACK reason code (as paho maps it) means."""
    if code in (_BAD_LOGIN, _NOT_ALLOWED) and not password_given:
        reason = f"no password was given: {PASSWORD_VARIABLE} is not set, or empty"
        return Refusal(reason=reason, hint=f"give one with {_WAYS}{_OR_A_CERTIFICATE * tls}")
    if code in (_BAD_LOGIN, _NOT_ALLOWED):
        said = "the user name or password" if code == _BAD_LOGIN else "this user is not allowed, or the password"
        reason = f"{said} is wrong"
        return Refusal(reason=reason, hint=f"the user is in the URL (mqtt://USER@host), the password in {_WAYS}")
    if code == _BAD_CLIENT_ID:
        return Refusal(reason="the client id is not allowed", hint="give another --id")
    return Refusal(reason=f"it answered with code {code}", final=False)


def plain(error: Exception) -> str:
    """Return an exception as a reason, without the system's error number."""
    strerror = getattr(error, "strerror", None)
    return str(strerror or error) or type(error).__name__


def unanswered(*, tls: bool) -> str:
    """Return what may be the matter where a broker takes a connection and ends it without a word."""
    return "; does it know this client's certificate (--credentials DIR)?" if tls else "; does it want TLS (mqtts://)?"


def too_large(size_bytes: int) -> str:
    """Return what may be the matter where a broker ends connection after connection with a large message open."""
    return (
        f"; time and again with a message of {size_bytes:,} bytes open: does it take packets of that size? Its limit "
        "must be 2 MiB, or blocks smaller (train --set block_steps=...)"
    )


def untrusted(error: ssl.SSLCertVerificationError) -> Refusal:
    """Return why the broker's certificate does not hold here."""
    hints = {
        _X509_EXPIRED: "renew it on the broker: quarl-edge broker init DIR; or is this host's clock wrong?",
        _X509_NOT_YET_VALID: "is this host's clock right? timedatectl set-ntp true",
        _X509_HOST: "name the broker as its certificate does, or add the name: quarl-edge broker init DIR --host NAME",
    }
    hints[_X509_ADDRESS] = hints[_X509_HOST]
    hint = hints.get(error.verify_code, "is it the broker that this client was enrolled for? --credentials DIR")
    reason = f"its certificate is not trusted: {error.verify_message}"
    return Refusal(reason=reason, hint=hint, error=BrokerNotTrusted)


def tls_fault(error: ssl.SSLError) -> Refusal:
    """Return what a TLS error means: the broker's word on our certificate, or a server that speaks no TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return untrusted(error)
    name = error.reason or ""
    for part, (reason, hint) in _ALERTS.items():
        if "ALERT" in name and part in name:
            return Refusal(reason=reason, hint=hint, error=CertificateRefused)
    if "ALERT" in name:
        said = name.partition("ALERT_")[2].replace("_", " ").lower()
        return Refusal(reason=f"it ended the TLS handshake: {said}", final=False)
    if name in _NO_TLS:
        return Refusal(reason="it does not speak TLS", hint="is the port right? mqtts:// is for TLS", final=False)
    return Refusal(reason=f"TLS failed: {name.replace('_', ' ').lower() or plain(error)}", final=False)
