"""Public-domain English text from Debian packages, and which part of it no model was trained on.

The packages are fetched with ``apt-get download`` and unpacked with ``dpkg-deb -x``
into a folder, so nothing is installed and no root rights are needed.  The licence of
every source is listed in README.md next to this file.  Standard library only.
"""

from __future__ import annotations

import gzip
import re
import struct
import subprocess
import unicodedata
import zlib
from pathlib import Path

PACKAGES = (
    "bible-kjv",
    "bible-kjv-text",
    "sword-text-web",
    "sword-comm-mhcc",
    "dict-devil",
    "dict-jargon",
    "display-dhammapada",
    "r-cran-janeaustenr",
)
HELDOUT_SHARE = 0.03
VERSES_PER_PARAGRAPH = 6


def fetch_packages(folder: Path) -> None:
    """Downloads every package of PACKAGES and unpacks it under folder/root/NAME."""
    (folder / "root").mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        root = folder / "root" / package
        if root.exists():
            continue
        subprocess.run(["apt-get", "download", "-q", package], cwd=folder, check=True)
        archive = next(folder.glob(f"{package}_*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(archive), str(root)], check=True)


def plain(text: str) -> str:
    """Folds typographic characters to ASCII and runs of blanks to one blank."""
    for old, new in (("“", '"'), ("”", '"'), ("‘", "'"), ("’", "'"), ("—", "--"), ("–", "-")):
        text = text.replace(old, new)
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"\s+", " ", text).strip()


def paragraphs_of(lines: list[str]) -> list[str]:
    """Joins hard-wrapped lines into paragraphs, which blank lines separate."""
    paragraphs, current = [], []
    for line in [*lines, ""]:
        if line.strip():
            current.append(line)
        elif current:
            paragraphs.append(plain(" ".join(current)))
            current = []
    return [paragraph for paragraph in paragraphs if len(paragraph) > 1]


def read_kjv(root: Path) -> list[str]:
    """The King James Version, printed verse by verse by the package's own program."""
    program = root / "bible-kjv/usr/bin/bible"
    data = root / "bible-kjv-text/usr/lib"
    output = subprocess.run(
        [str(program), "-p", str(data), "-f", "Gen1:1-Rev22:21"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    paragraphs: list[str] = []
    chapter, verses = "", []
    for line in [*output.splitlines(), "End0:0 "]:
        match = re.match(r"(\w+?\d+):\d+ (.*)", line)
        if not match:
            continue
        if match[1] != chapter or len(verses) == VERSES_PER_PARAGRAPH:
            paragraphs.append(plain(" ".join(verses)))
            chapter, verses = match[1], []
        verses.append(match[2])
    return [paragraph for paragraph in paragraphs if paragraph]


def read_sword(folder: Path) -> list[str]:
    """The text of a compressed SWORD module, without notes, headings and markup.

    A module is a pair of testaments, each an index (.bzs: offset, size, unpacked size)
    of zlib blocks (.bzz) of OSIS XML.
    """
    paragraphs: list[str] = []
    for testament in ("ot", "nt"):
        index = next(folder.glob(f"**/{testament}.bzs"))
        blocks = index.with_suffix(".bzz").read_bytes()
        for offset, size, _ in struct.iter_unpack("<III", index.read_bytes()):
            text = zlib.decompress(blocks[offset : offset + size]).decode("utf-8", "replace")
            text = re.sub(r"<(note|title|table)\b.*?</\1>", "", text, flags=re.DOTALL)
            text = re.sub(r'<hi type="bold">Verses?.*?</hi>', "", text)
            text = re.sub(r'<div [^>]*type="(x-p|paragraph)"[^>]*>|</?lg[^>]*>', "\n", text)
            text = re.sub(r"<[^>]*>", "", text)
            paragraphs += [line for line in map(plain, text.split("\n")) if len(line) > 20]
    return paragraphs


def read_dictionary(root: Path, name: str, verse: bool) -> list[str]:
    """The entries of a dictd dictionary; verse keeps the line breaks of indented lines."""
    with gzip.open(root / f"usr/share/dictd/{name}.dict.dz") as file:
        lines = file.read().decode("utf-8", "replace").splitlines()
    if verse:
        lines = [part for line in lines for part in ([line, ""] if line[:4].isspace() else [line])]
    return paragraphs_of(lines)


def read_dhammapada(root: Path) -> list[str]:
    """Two public-domain translations of the Dhammapada, without their title pages."""
    paragraphs: list[str] = []
    for name in ("dhammapada-english-transl.txt", "dhammapada-alternate.txt"):
        path = root / "usr/share/display-dhammapada" / name
        text = path.read_text("utf-8", "replace")
        paragraphs += paragraphs_of(text.splitlines())[20:]
    return paragraphs


def read_r_strings(data: bytes) -> list[str]:
    """All the strings of an R object serialised in XDR form.

    Every element of a character vector is a flag word 0x000?0009, a length and that many
    bytes, so that a scan for the flag word finds them without parsing the other types.
    """
    strings: list[str] = []
    position = data.find(b"\x00\x00\x00\x10") + 8
    while position + 8 <= len(data):
        flags, length = struct.unpack_from(">Ii", data, position)
        if flags & 0xFF != 9:
            break
        position += 8
        if length > 0:
            strings.append(data[position : position + length].decode("utf-8", "replace"))
            position += length
        else:
            strings.append("")
    return strings


def read_austen(root: Path) -> list[list[str]]:
    """Jane Austen's six novels out of the R package's lazy-load database."""
    data = next(root.glob("**/data/Rdata.rdb")).read_bytes()
    novels = []
    while data:
        unpacker = zlib.decompressobj()
        body = unpacker.decompress(data[4:])
        data = unpacker.unused_data
        paragraphs = paragraphs_of(read_r_strings(body))
        novels.append([text.replace("_", "") for text in paragraphs])
    return novels


def read_sources(folder: Path) -> dict[str, list[str]]:
    """Every source by name, as paragraphs in reading order."""
    root = folder / "root"
    sources = {
        "kjv": read_kjv(root),
        "web": read_sword(root / "sword-text-web"),
        "mhcc": read_sword(root / "sword-comm-mhcc"),
        "devil": read_dictionary(root / "dict-devil", "devil", verse=True),
        "jargon": read_dictionary(root / "dict-jargon", "jargon", verse=False),
        "dhammapada": read_dhammapada(root / "display-dhammapada"),
    }
    for number, novel in enumerate(read_austen(root / "r-cran-janeaustenr")):
        sources[f"austen{number + 1}"] = novel
    return sources


def split_of(paragraphs: list[str]) -> tuple[list[str], list[str]]:
    """A source's paragraphs to train on, and its last ones, which are held out."""
    cut = int(len(paragraphs) * (1 - HELDOUT_SHARE))
    return paragraphs[:cut], paragraphs[cut:]
