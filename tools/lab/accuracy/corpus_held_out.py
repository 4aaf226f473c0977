"""The part of the models' own sources that they were not trained on: prose of the kind they know."""

import pathlib
import subprocess
import sys

from accuracy.held_out_text import ROOT

FETCHED = ROOT / "build" / "corpus"
# About two windows of 1,024 tokens: few enough seams, and 16 windows still meet several sources.
PIECE = 8000


def pieces_of(paragraphs, size=PIECE):
    """Consecutive paragraphs, joined until a piece has `size` characters."""
    pieces, current = [], []
    for paragraph in paragraphs:
        current.append(paragraph)
        if sum(map(len, current)) + len(current) >= size:
            pieces.append("\n".join(current) + "\n")
            current = []
    return pieces + (["\n".join(current) + "\n"] if current else [])


def spread(pieces):
    """Another order, in which the first N pieces lie all over the text, whatever N: by their numbers' reversed bits."""
    bits = max(1, (len(pieces) - 1).bit_length())
    return [pieces[at] for at in sorted(range(len(pieces)), key=lambda at: int(f"{at:0{bits}b}"[::-1], 2))]


def corpus_held_out(folder=FETCHED):
    """The held-out paragraphs of all sources; fetches Debian's packages into `folder` once."""
    sys.path.insert(0, str(ROOT / "tools" / "lab" / "train_test_model"))
    import sources  # pylint: disable=import-outside-toplevel

    try:
        sources.fetch_packages(pathlib.Path(folder))
        texts = sources.read_sources(pathlib.Path(folder))
    except (OSError, subprocess.CalledProcessError, StopIteration) as error:
        raise SystemExit(f"{folder}: cannot fetch or read the models' sources ({error or 'a file is missing'}); expected "
                         "Debian's apt-get and its archive; --text FILE or --text docs needs neither") from error
    return "".join(spread(pieces_of([one for text in texts.values() for one in sources.split_of(text)[1]])))
