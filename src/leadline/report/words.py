"""Numbers as a reader wants them: few digits, a real minus sign, and a dash where there is nothing."""

from __future__ import annotations

DASH = "–"
MINUS = "−"


def significant(value: float | None, digits: int = 3) -> str:
    """`digits` significant digits, without an exponent where it can be avoided: 0.0123, 4.57, 12,300."""
    if value is None:
        return DASH
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    power = int(exponent)
    if power < -4 or power > 8:
        return f"{_minus(mantissa)}e{_minus(str(power))}"
    return _minus(f"{round(value, digits - 1 - power):,.{max(0, digits - 1 - power)}f}")


def plain(value: float | None, digits: int = 3) -> str:
    """As `significant`, without trailing zeros: 0.5, 2, 0.004."""
    text = significant(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def fixed(value: float | None, decimals: int = 3, sign: bool = False) -> str:
    """A fixed number of decimals, with a plus sign on request."""
    if value is None:
        return DASH
    text = f"{value:+,.{decimals}f}" if sign else f"{value:,.{decimals}f}"
    if not any(digit in text for digit in "123456789"):
        text = text.lstrip("+-")
    return _minus(text)


def percent(share: float | None, decimals: int = 0, sign: bool = False) -> str:
    """A share as a percentage, with a space that doesn't break: 28 %, +1.5 %."""
    return DASH if share is None else f"{fixed(100 * share, decimals, sign)}\u00a0%"


def count(value: float | None, digits: int = 3) -> str:
    """1.77 M, 20.0 k, 12: thousands by their letter."""
    if value is None:
        return DASH
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * (1 - 0.5 * 10**-digits):
            return f"{significant(value / size, digits)} {letter}"
    return f"{value:,.0f}" if value == int(value) else significant(value, digits)


def memory(value: float | None) -> str:
    """Bytes in decimal units: 412 MB."""
    return DASH if value is None else f"{count(value)}B" if abs(value) >= 999.5 else f"{value:.0f} B"


def duration(seconds: float | None) -> str:
    """48 s, 3 min 12 s, 2 h 5 min."""
    if seconds is None:
        return DASH
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def times(ratio: float | None) -> str:
    """A ratio to the baseline: 1.24×."""
    return DASH if ratio is None else f"{fixed(ratio, 2)}×"


def interval(mean: float | None, low: float | None, high: float | None, decimals: int = 3) -> str:
    """`± half` where the interval lies evenly around the mean, else `low to high`; empty where there is none."""
    if mean is None or low is None or high is None:
        return ""
    half = (high - low) / 2
    if abs((high + low) / 2 - mean) < 0.5 * 10**-decimals:
        return f"± {fixed(half, decimals)}"
    return f"{fixed(low, decimals)} to {fixed(high, decimals)}"


def listed(names: list[str]) -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def shortened(name: str, limit: int) -> str:
    """The name, cut with an ellipsis where it is longer than `limit` characters."""
    return name if len(name) <= limit else name[: limit - 1].rstrip() + "…"


def _minus(text: str) -> str:
    return text.replace("-", MINUS, 1) if text.startswith("-") else text
