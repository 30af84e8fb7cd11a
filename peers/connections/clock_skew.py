"""Texts for people about certificates and tokens that a wrong clock makes invalid. Must NOT correct
a clock."""

import os
import ssl
import time
from datetime import UTC, datetime

SET_IT = "set the clock (`timedatectl` shows it, `timedatectl set-ntp true` keeps it right)"
DAY_S, HOUR_S, MINUTE_S = 86_400, 3_600, 60
_NOT_YET, _ENDED = 9, 10
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL."""


def at(unix_s: float) -> str:
    """A time as 2026-11-25 02:00 UTC."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def span(seconds: float) -> str:
    """A duration in its two largest units, as 3 days 2 hours."""
    days, rest = divmod(int(seconds), DAY_S)
    hours, rest = divmod(rest, HOUR_S)
    parts = [(days, "day"), (hours, "hour"), (rest // MINUTE_S, "minute")]
    told = [f"{count} {unit}{'s' * (count != 1)}" for count, unit in parts if count]
    return " ".join(told[:2]) or "less than a minute"


def clock_fault(made_s: float, ends_s: float, *, skew_s: float) -> str:
    """Why a certificate made at `made_s` and valid until `ends_s` is not valid now, by this
    machine's clock, which may be `skew_s` behind; "" if it is valid. Unix seconds."""
    now = time.time()
    if now < made_s - skew_s:
        return (
            f"this machine's clock says {at(now)}, which is {span(made_s - now)} before the "
            f"certificate was made ({at(made_s)}): {SET_IT}; if it is right, the clock of the "
            "machine that made the certificate was ahead"
        )
    if now > ends_s:
        return (
            f"this machine's clock says {at(now)}, which is {span(now - ends_s)} after the "
            f"certificate ended ({at(ends_s)}): {SET_IT}; if it is right, begin another run"
        )
    return ""


def token_ended(expires_s: float) -> str:
    """Why a token has expired, by this machine's clock; "" if it has not."""
    now = time.time()
    if now < expires_s:
        return ""
    return (
        f"this token has expired: it was good until {at(expires_s)}, and the clock of the machine "
        f"that leads the run says {at(now)}"
    )


def tls_fault(error: OSError) -> str:
    """The text of a connection's error, without its number; if the other side's certificate is not
    valid now, with the time of this machine's clock."""
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in (_NOT_YET, _ENDED):
        when = "not valid yet" if error.verify_code == _NOT_YET else "valid no more"
        return (
            f"its certificate is {when} by this machine's clock, which says {at(time.time())}: "
            f"{SET_IT}, here or on the machine that let that node in"
        )
    if error.errno is None or isinstance(error, ssl.SSLError):
        return str(error)
    return os.strerror(error.errno)  # Event loops write texts of their own.
