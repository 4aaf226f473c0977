"""Texts that no model was trained on: this project's own documents, and what training left out of the models' sources."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
FETCHED = ROOT / "build" / "corpus"
# About two windows of 1,024 tokens: few enough seams, and 16 windows still meet several sources.
PIECE = 8000


def prose(markdown):
    """Paragraphs and list items, without code, tables, links' targets and marks."""
    markdown = re.sub(r"```.*?```", "", markdown, flags=re.S)
    paragraphs = []
    for block in re.split(r"\n\s*\n|\n(?=[-*] )", markdown):
        lines = [line.strip() for line in block.splitlines() if not line.lstrip().startswith(("|", "#"))]
        words = " ".join(" ".join(lines).split())
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", words)
        words = re.sub(r"[`*]", "", words).removeprefix("- ")
        if len(words) > 80:
            paragraphs.append(words)
    return paragraphs


def held_out_text():
    """Every paragraph once, in a fixed order; without docs/accuracy.md, which is made from it."""
    paragraphs = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CHANGELOG.md"]:
        if path.name != "accuracy.md":
            paragraphs += prose(path.read_text(encoding="utf-8"))
    return "\n".join(dict.fromkeys(paragraphs)) + "\n"


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


def corpus_held_out():
    """The held-out paragraphs of all sources, prose of the kind that the models know; fetches Debian's packages once."""
    sys.path.insert(0, str(ROOT / "tools" / "lab" / "train_test_model"))
    import sources  # pylint: disable=import-outside-toplevel

    try:
        sources.fetch_packages(FETCHED)
        texts = sources.read_sources(FETCHED)
    except (OSError, subprocess.CalledProcessError, StopIteration) as error:
        raise SystemExit(f"{FETCHED}: cannot fetch or read the models' sources ({error or 'a file is missing'}); expected "
                         "Debian's apt-get and its archive; --text FILE or --text docs needs neither") from error
    return "".join(spread(pieces_of([one for text in texts.values() for one in sources.split_of(text)[1]])))


def text_of(name):
    """None: what the models' training left out; "docs": the project's documents; else a file's."""
    if name is None:
        return corpus_held_out()
    if name == "docs":
        return held_out_text()
    try:
        return pathlib.Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SystemExit(f"--text {name}: {error}; expected a UTF-8 text, or docs") from error
