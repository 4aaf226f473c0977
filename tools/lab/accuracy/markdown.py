"""Numbers and tables as Markdown."""

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
