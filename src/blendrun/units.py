"""Bytes, tokens, seconds, FLOP: how they are written, read and printed.

The only home of powers of ten and two that stand for a unit.
"""

import re

from blendrun.errors import InputError

KIB = 2**10
MIB = 2**20
GIB = 2**30
KILO = 1e3
MEGA = 1e6
GIGA = 1e9
TERA = 1e12

_BYTE_UNITS = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "kb": 1000,
    "m": MIB, "mib": MIB, "mb": 1000**2,
    "g": GIB, "gib": GIB, "gb": 1000**3,
    "t": 2**40, "tib": 2**40, "tb": 1000**4,
}  # fmt: skip


def parse_bytes(text: str) -> int:
    """Bytes of a size such as `4GiB`, `4G` (binary) or `4GB` (decimal).

    Raises:
        InputError: `text` is no size above zero.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    factor = _BYTE_UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None or float(match[1]) * factor < 1:
        raise InputError(f"{text!r} is not a size in bytes", "write it as 4GiB, 512MiB or 4GB")
    return int(float(match[1]) * factor)


def parse_seconds(text: str) -> float:
    """Seconds of a duration such as `90s`, `45m`, `3h` or `1h30m`.

    Raises:
        InputError: `text` is no duration above zero.
    """
    match = re.fullmatch(r"\s*(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?\s*", text)
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600.0 * hours + 60 * minutes + seconds
    if total <= 0:
        raise InputError(f"{text!r} is not a duration", "write it as 90s, 45m, 3h or 1h30m")
    return total


def format_bytes(num_bytes: float) -> str:
    for unit, size in (("TiB", 2**40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes:.0f} B"


def format_count(count: float) -> str:
    """A count with thousands separators, or with K, M, G from ten thousand up."""
    for suffix, size in (("G", GIGA), ("M", MEGA), ("K", KILO)):
        if count >= max(size, 10 * KILO):
            return f"{count / size:,.2f} {suffix}"
    return f"{count:,.0f}"


def count_of(count: int, noun: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_share(frac: float) -> str:
    """A whole percentage; `less than 1%` where that would read as nothing."""
    return "less than 1%" if 0 < frac < 0.005 else f"{frac:z.0%}"


def format_seconds(seconds: float) -> str:
    """A duration as a person reads it: `0.42 s`, `12.3 s`, `4 min 05 s`, `-3 h 12 min`."""
    sign = "-" if seconds <= -0.005 else ""  # what is printed as 0 has none
    return sign + _duration(abs(seconds))


def format_difference(seconds: float) -> str:
    """Likewise with its sign: `+0.42 s`, `-12.3 s`, `0.00 s`."""
    return f"+{format_seconds(seconds)}" if seconds >= 0.005 else format_seconds(seconds)


def _duration(seconds: float) -> str:
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{seconds / 86400:,.1f} days"
