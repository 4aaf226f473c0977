"""Scores with their standard errors, and what two scores of the same samples say beside each other."""

import math


class Score(tuple):
    """(value, standard error), with the samples that the value is the mean of."""

    def __new__(cls, value, error, samples=(), share=False):
        self = super().__new__(cls, (value, error))
        self.samples = tuple(samples)
        self.share = share  # of hits: each sample is 0 or 1
        return self


def score_of(row, task):
    """Of a row of `triphase eval`."""
    samples = row.get("score_samples") or ()
    if task == "perplexity":  # nats of each window; a small change of them changes the score so many times
        samples = [row[task] * nats for nats in samples]
    return Score(row[task], row[f"{task}_stderr"], samples)


def pooled_share(rows, task, count):
    """Of all the hits and misses of rows of `triphase eval`; `count` names how many samples a row has.

    The error is that of (hits + 1) / (samples + 2): a few samples that all agree do not make a share certain.
    """
    total = sum(row[count] for row in rows)
    hits = sum(row[task] * row[count] for row in rows)
    smoothed = (hits + 1) / (total + 2)
    samples = [one for row in rows for one in row.get("score_samples") or ()]
    return Score(hits / total, math.sqrt(smoothed * (1 - smoothed) / (total + 2)), samples, share=True)


def _error_of(residuals, shares):
    """Standard error of the mean of paired differences. As for a share, two that disagree are added to hits and
    misses, so that a few that agree are no certainty."""
    if shares:
        residuals = [*residuals, 1.0, -1.0]
    mean = sum(residuals) / len(residuals)
    return math.sqrt(sum((one - mean) ** 2 for one in residuals) / (len(residuals) - 1) / len(residuals))


def _paired(a, b):
    samples = getattr(a, "samples", ())
    return len(samples) >= 2 and len(samples) == len(getattr(b, "samples", ()))


def ratio(above, below):
    """Of two scores, (value, error). Where both have the same samples, what makes a sample hard cancels."""
    if below[0] == 0:
        return math.nan, math.nan
    value = above[0] / below[0]
    if _paired(above, below):
        residuals = [one - value * other for one, other in zip(above.samples, below.samples)]
        return value, _error_of(residuals, above.share and below.share) / abs(below[0])
    return value, math.hypot(above[1] / below[0], value * below[1] / below[0])


def apart(a, b):
    """The difference of two scores in standard errors: of the samples' differences where they are the same samples."""
    if _paired(a, b):
        error = _error_of([one - other for one, other in zip(a.samples, b.samples)], a.share and b.share)
    else:
        error = math.hypot(a[1], b[1])
    return (a[0] - b[0]) / error if error else (0.0 if a[0] == b[0] else float("inf") * (1 if a[0] > b[0] else -1))


def told_apart(a, b):
    return abs(apart(a, b)) > 2
