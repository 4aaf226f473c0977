"""Numbers and tables as Markdown."""

import math


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "| " + " | ".join(["---"] + ["---:"] * (len(header) - 1)) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def with_error(value, error, digits=2):
    digits = 0 if abs(value) >= 10000 else digits
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def percent(value, error):
    return f"{100 * value:.0f} ± {100 * error:.0f} %"


def bullets(sentences):
    return "\n".join(f"- {one}" for one in sentences) + "\n"


def share_of(text):
    """"1/8" as a number."""
    over, _, under = text.partition("/")
    return float(over) / float(under or 1)


def pooled_share(shares_and_counts):
    """Mean and standard error of all the hits and misses of which the parts' shares are given.

    The error is that of (hits + 1) / (samples + 2): a few samples that all agree do not make a share certain.
    """
    count = sum(n for _, n in shares_and_counts)
    hits = sum(share * n for share, n in shares_and_counts)
    smoothed = (hits + 1) / (count + 2)
    return hits / count, math.sqrt(smoothed * (1 - smoothed) / (count + 2))


def ratio(above, below):
    """Of two (value, error), as if their samples were independent (mostly they are the same: an upper bound)."""
    if below[0] == 0:
        return math.nan, math.nan
    value = above[0] / below[0]
    relative = below[1] / below[0]
    return value, math.hypot(above[1] / below[0], value * relative)


def apart(a, b):
    """The difference of two scores in standard errors, as if their samples were independent."""
    error = (a[1] ** 2 + b[1] ** 2) ** 0.5
    return (a[0] - b[0]) / error if error else (0.0 if a[0] == b[0] else float("inf") * (1 if a[0] > b[0] else -1))


def told_apart(a, b):
    return abs(apart(a, b)) > 2
