"""Figures as text for people: bytes, numbers, times and factors, each in a unit that fits it.

Must NOT know what is measured, nor round a value that is computed with.
"""

from collections.abc import Sequence


def bytes_text(amount: float) -> str:
    """Format bytes like "6.6 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def decimal_bytes_text(amount: float) -> str:
    """Format bytes like "100 MB", for an axis of powers of ten."""
    return count_text(amount, units=(" B", " kB", " MB", " GB", " TB"))


def count_text(number: float, *, units: Sequence[str] = ("", " k", " M", " G", " T")) -> str:
    """Format a number with three digits, like "12.3 k"."""
    for unit in units[:-1]:
        if abs(number) < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}{units[-1]}"


def seconds_text(seconds: float) -> str:
    """Format seconds like "0.21 s", "42 s", "3:05" (minutes) or "1:02:03" (hours)."""
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def milliseconds_text(seconds: float) -> str:
    """Format seconds like "2.1 ms"."""
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"


def factor_text(factor: float) -> str:
    """Format other amount / actual amount, like "19.4 x less"; below 1, like "2 x more"."""
    if factor >= 1:
        return f"{factor:.3g} x less"
    return f"{1 / factor:.3g} x more"
