"""What a link says when a broker refuses or goes away: what happened, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from quarl_device.link.url import PASSWORD_VARIABLE

_BAD_CLIENT_ID, _BAD_LOGIN, _NOT_ALLOWED = 133, 134, 135
_WAYS = f"{PASSWORD_VARIABLE} or --password-file"


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a broker refused a client.

    Attributes:
        reason: what it said, as far as it can be known.
        hint: what mends it, "" if nobody can say.
        final: trying again cannot mend it.
    """

    reason: str
    hint: str = ""
    final: bool = True


def refusal(code: int, *, password_given: bool) -> Refusal:
    """Return what a CONNACK reason code (as paho maps it) means."""
    if code in (_BAD_LOGIN, _NOT_ALLOWED) and not password_given:
        said = "the user name or password is wrong" if code == _BAD_LOGIN else "this user is not allowed"
        return Refusal(reason=f"{said}; no password was given", hint=f"give one with {_WAYS}")
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
