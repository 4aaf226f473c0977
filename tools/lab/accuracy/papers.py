"""Published scores that ours stand beside, and what may be said about the distance.

Shares of the same model's score with dense attention. SparQ: Table 2 (Repetition; the largest model of five
families) and Table 3 (needle; three ranges of lengths). Squeezed Attention: Table 4 (PreFixQA; three models).
"""

from accuracy.markdown import with_error


def shares(dense, scores):
    return tuple(score / whole for whole, score in zip(dense, scores))


_REPETITION = (229, 213, 231, 245, 150)
SPARQ_REPETITION = {
    ("sparq", "1/2"): shares(_REPETITION, (227, 214, 209, 240, 151)),
    ("sparq", "1/8"): shares(_REPETITION, (190, 213, 201, 237, 144)),
    ("h2o", "1/2"): shares(_REPETITION, (61, 67, 38, 68, 47)),
    ("h2o", "1/8"): shares(_REPETITION, (26, 30, 14, 18, 17)),
    ("lm-infinite", "1/2"): shares(_REPETITION, (76, 102, 81, 101, 64)),
    ("lm-infinite", "1/8"): shares(_REPETITION, (29, 27, 20, 23, 18)),
}
_NEEDLE = (100, 100, 90.4)
SPARQ_NEEDLE = {
    ("sparq", "1/4"): shares(_NEEDLE, (100, 100, 90.4)),
    ("sparq", "1/8"): shares(_NEEDLE, (79.4, 100, 87.5)),
    ("h2o", "1/4"): shares(_NEEDLE, (5.9, 8.8, 10.3)),
    ("h2o", "1/8"): shares(_NEEDLE, (2.9, 5.9, 5.9)),
    ("lm-infinite", "1/4"): shares(_NEEDLE, (23.5, 23.5, 23.5)),
    ("lm-infinite", "1/8"): shares(_NEEDLE, (11.8, 11.8, 11.8)),
}
_PREFIXQA = (43.47, 14.92, 24.13)
# (sparsity, levels)
SQUEEZED_PREFIXQA = {
    ("0.7", 1): shares(_PREFIXQA, (42.14, 14.45, 23.79)),
    ("0.9", 1): shares(_PREFIXQA, (36.95, 14.25, 23.94)),
    ("0.9", 2): shares(_PREFIXQA, (37.05, 14.12, 23.71)),
}


def place(found, published):
    """Where (value, error) lies beside the published shares."""
    value, error = found
    low, high = min(published), max(published)
    if low <= value <= high:
        return "among them"
    side = "below" if value < low else "above"
    distance = low - value if value < low else value - high
    return f"{side} them" if distance > 2 * error else f"{side} them by less than two standard errors"


def compare(named, found, published, where):
    low, high = min(published), max(published)
    span = f"{low:.2f} to {high:.2f}" if f"{low:.2f}" != f"{high:.2f}" else f"{low:.2f}"
    return f"{named}: {with_error(*found)} of dense, in the paper's {where} {span}; ours is {place(found, published)}."
