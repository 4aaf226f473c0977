"""Text that no model was trained on: this project's own documents."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[3]


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
