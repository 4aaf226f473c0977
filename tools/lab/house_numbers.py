#!/usr/bin/env python3
"""Counts what a maintainer has to know: lines, knobs, error codes, large pieces.

    tools/lab/house_numbers.py [ROOT [ROOT_AFTER]]

Prints a Markdown table, with two roots one column for each. Nothing is built or run; the sources are read as
clang-format leaves them. The rules:

- lines, files: tracked files by top folder, every line; tests and bench apart.
- options: of each command, as docs/options.md lists them; distinct names over all commands.
- knobs: distinct option names, options of attention methods and of placement policies (docs/options.md), and TRIPHASE_*
  variables that C++ reads outside tests.
- error codes: rows of error_codes.inc.
- classes, functions: outside tests and bench; a function's lines from its name to its closing brace; a class's data
  members and member functions that are declared in its braces.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import sys

CPP = {".cpp", ".h", ".inl", ".inc"}
CUDA = {".cu", ".cuh"}
APART = {"tests", "bench"}
STRING = r'"(?:[^"\\\n]|\\.)*"'
NO_FUNCTION = re.compile(r"(?:^|> )(?:class|struct|enum|union) |^(?:for|if|while|switch|do|else|try|return|case)\b")


def room_of(path):
    folders = pathlib.PurePath(path).parts
    return folders[0] if len(folders) > 1 else "(root)"


class Tree:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        listed = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True, check=True)
        self.text = {
            name: (self.root / name).read_text(encoding="utf-8", errors="replace")
            for name in listed.stdout.splitlines()
            if pathlib.PurePath(name).suffix in CPP | CUDA | {".py", ".md"} and (self.root / name).is_file()
        }

    def product(self, kinds):
        return {name: text for name, text in self.text.items()
                if room_of(name) not in APART and pathlib.PurePath(name).suffix in kinds}  # fmt: skip


def sizes(tree):
    """{(what, room): (lines, files)}"""
    counts = collections.defaultdict(lambda: [0, 0])
    for name, text in tree.text.items():
        suffix, room = pathlib.PurePath(name).suffix, room_of(name)
        kind = "C++" if suffix in CPP else "CUDA" if suffix in CUDA else "Python" if suffix == ".py" else "Markdown"
        keys = [(kind, room)]
        if kind != "Markdown":
            keys.append(("Tests and bench" if room in APART else "Product", "all code"))
        for key in keys:
            counts[key][0] += text.count("\n")
            counts[key][1] += 1
    return counts


def functions(tree):
    """(lines, "file: head") of each function: text from column 0, or 2 in a class, to its closing brace."""
    found = []
    for name, text in tree.product(CPP | CUDA).items():
        lines = text.splitlines()
        for indent in ("", "  "):
            head = None
            for number, line in enumerate(lines):
                if head is None and re.match(indent + r"[A-Za-z_\[~]", line) and not line.endswith((";", ":")):
                    head = number
                if head is None:
                    continue
                opening = " ".join(part.strip() for part in lines[head:number + 1]).split("{")[0]
                ended = line.startswith(indent + "}") or (number == head and line.endswith("}"))
                if ended and "(" in opening and " = " not in opening.split("(")[0] and not NO_FUNCTION.search(opening):
                    found.append((number - head + 1, f"{name}: {opening.split('(')[0]}"))
                # A namespace holds functions; what ends before any brace is a declaration.
                if ended or opening.startswith("namespace") or (line.endswith(";") and opening.endswith(";")):
                    head = None
    return sorted(found, reverse=True)


def statements(body):
    """The declarations of a class body, without what is in nested braces."""
    body = re.sub(r"//[^\n]*|^\s*#[^\n]*", "", re.sub(STRING, '""', body), flags=re.M)
    depth, current = 0, ""
    for at, letter in enumerate(body):
        if letter == "{":
            depth += 1
        elif letter == "}":
            depth -= 1
            if depth == 0 and not re.match(r"\s*[;,)]", body[at + 1:]):
                yield current  # the end of a function's body
                current = ""
        elif depth == 0 and letter == ";":
            yield current
            current = ""
        elif depth == 0:
            current += letter


def classes(tree):
    """(members, methods, "file: name") of each class and struct."""
    found = []
    pattern = re.compile(r"^( *)(?:class|struct) (?:\[\[\w+\]\] )?(\w+)[^;{]*\{\n(.*?)\n\1\};", re.S | re.M)
    for name, text in tree.product(CPP | CUDA).items():
        for _, kind, body in pattern.findall(text):
            members = methods = 0
            for statement in statements(body):
                words = re.sub(r"\b(?:public|private|protected)\s*:", "", statement).strip()
                other = r"(?:using|friend|enum|class|struct|static constexpr|static_assert|template)\b"
                if not words or re.match(other, words):
                    methods += words.startswith("template") and "(" in words
                    continue
                plain = re.sub(r"<[^()]*>|\[\[\w+\]\]|alignas\([^)]*\)", "", words)
                is_method = "(" in plain.split("=")[0] or "operator" in plain
                methods += is_method
                members += not is_method
            found.append((members, methods, f"{name}: {kind}"))
    return found


def options(tree):
    """{heading of docs/options.md: names in its tables}"""
    found, names = {}, []
    for line in tree.text.get("docs/options.md", "").splitlines():
        if line.startswith("## "):
            names = found.setdefault(line.removeprefix("## "), [])
        elif row := re.match(r"\| (?:`-\w` )?`(?:--)?([a-z][\w.-]*)", line):
            names.append(row[1])
    return found


def numbers(tree):
    """{row: text} of the table, in its order."""
    table = {}
    for (kind, room), (lines, files) in sorted(sizes(tree).items()):
        table[f"{kind}, {room}"] = f"{lines:,} lines, {files} files"
    pages = options(tree)
    commands = {page.removeprefix("triphase "): names for page, names in pages.items() if page.startswith("triphase ")}
    everywhere = pages.get("Messages: options of every command", [])
    for command, names in commands.items():
        table[f"options of {command}"] = str(len(names) + len(everywhere))
    knobs = {"option names": {*everywhere, *(name for names in commands.values() for name in names)},
             "attention options": set(pages.get("Options of attention methods", ())),
             "policy options": set(pages.get("Options of placement policies", ())),
             "environment variables": {name for text in tree.product(CPP | CUDA).values()
                                       for name in re.findall(r'getenv\("(TRIPHASE_\w+)"', text)}}  # fmt: skip
    for kind, names in knobs.items():
        table[kind] = str(len(names))
    table["knobs"] = str(sum(map(len, knobs.values())))
    codes = tree.text.get("base/error_codes.inc", "")
    table["error codes"] = str(len(re.findall(r"^TRIPHASE_ERROR_CODE\(", codes, re.M)))
    found = classes(tree)
    for rank, (members, methods, where) in enumerate(sorted(found, reverse=True)[:5], 1):
        table[f"most members, {rank}"] = f"{members} + {methods} functions ({where})"
    for rank, (members, methods, where) in enumerate(sorted(found, key=lambda one: -one[1])[:5], 1):
        table[f"most member functions, {rank}"] = f"{methods} + {members} members ({where})"
    longest = functions(tree)
    for rank, (lines, where) in enumerate(longest[:5], 1):
        table[f"longest function, {rank}"] = f"{lines} lines ({where})"
    table["functions over 60 lines"] = str(sum(lines > 60 for lines, _ in longest))
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", nargs="*", metavar="ROOT", help="checkouts of the repository (default: this one)")
    roots = parser.parse_args().roots or [str(pathlib.Path(__file__).resolve().parents[2])]
    if len(roots) > 2:
        parser.error("one root or two")
    columns = [numbers(Tree(root)) for root in roots]
    print("| |" + (" before | after |" if len(columns) == 2 else " now |"))
    print("|---|" + "---|" * len(columns))
    for row in dict.fromkeys(row for column in columns for row in column):
        print(f"| {row} | " + " | ".join(column.get(row, "-") for column in columns) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
