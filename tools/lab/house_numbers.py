#!/usr/bin/env python3
"""Counts what a maintainer has to know: lines, knobs, error codes, refused pairs, large pieces.

    tools/lab/house_numbers.py [ROOT [ROOT_AFTER]] [--list]

Prints a Markdown table, with two roots one column for each. --list prints what was counted, of the last root.
Nothing is built or run; the sources are read as clang-format leaves them. The rules:

- lines, files: tracked files by top folder (runtime/base counts as base), every line; tests and bench apart.
- options: rows of option_table.cpp, option_groups.h and tool_options.cpp, per command as its arrays are joined; distinct names over all commands.
- knobs: distinct option names, attention options ("method.name" in scheduler/attention), policy options (the
  names that make_policy.cpp reads) and TRIPHASE_* variables that C++ reads outside tests.
- error codes: rows of error_codes.inc.
- refused pairs: option rows whose help ties them to another option ("not with --x", "needs --x", "only with --x",
  "has it under --x", "instead of --x", or "--x: ..." in front), and places outside tests and bench that refuse a
  combination: a throw of E-CLI-CONFLICT, or of another E-CLI code with two options in its text before the hint. Where
  a helper named refuse* does nothing but throw, its calls in that file count instead, their texts and its own as one.
- classes, functions: outside tests and bench; a function's lines from its name to its closing brace; a class's data
  members and member functions that are declared in its braces.
- files on a prompt's way: those that the diagram "The way of the data" in docs/ARCHITECTURE.md names, a .h and its
  .cpp as one; and the project's headers that runtime/generate.cpp includes, directly or not.
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
COMPANY = re.compile(r"\b(?:not with|needs?|only with|has it under|instead of) --[a-z]|^--[a-z-]+[^:.]*:", re.I)
NO_FUNCTION = re.compile(r"(?:^|> )(?:class|struct|enum|union) |^(?:for|if|while|switch|do|else|try|return|case)\b")
OPTION_NAME = re.compile(r"--[a-z][a-z0-9-]+|\b[a-z][a-z0-9-]*(?:\.[a-z_]+)?=(?=[a-z0-9{])")


def room_of(path):
    folders = pathlib.PurePath(path).parts
    if folders[:2] == ("runtime", "base"):
        return "base"
    return folders[0] if len(folders) > 1 else "(root)"


class Tree:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        listed = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True, check=True)
        self.files = [name for name in listed.stdout.splitlines() if (self.root / name).is_file()]
        self.text = {
            name: (self.root / name).read_text(encoding="utf-8", errors="replace")
            for name in self.files
            if pathlib.PurePath(name).suffix in CPP | CUDA | {".py", ".md"}
        }

    def named(self, ending):
        """The one file whose path ends so; a tree without it has none of what it lists."""
        found = [name for name in self.files if name.endswith(ending) and room_of(name) not in APART]
        return self.text[found[0]] if found else ""

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


def option_table(tree):
    """({command: [option name]}, {(array, name): help text})"""
    source = "".join(map(tree.named, ("option_groups.h", "option_table.cpp", "tool_options.cpp")))
    arrays, helps = {}, {}
    for name, body in re.findall(r"constexpr OptionSpec (k\w+)\[\] = \{(.*?)\n\};", source, re.S):
        arrays[name] = []
        row = rf'\{{\s*(?:k\w+|(?:{STRING}\s*)+),\s*"([a-z0-9-]+)",(.*?)\}},\n|(k\w+)\[(\d+)\]'
        for option, rest, other, at in re.findall(row, body + "\n", re.S):
            if other:  # a row of another array
                arrays[name].append(arrays[other][int(at)])
                continue
            arrays[name].append(option)
            # The help is the last run of literals of a row.
            literals = re.search(rf"((?:{STRING}\s*)+)$", rest.strip())
            helps[name, option] = "".join(part[1:-1] for part in re.findall(STRING, literals[1])) if literals else ""
    for name, parts in re.findall(r"constexpr auto (k\w+) =\s*joined\((.*?)\);", source, re.S):
        arrays[name] = [option for part in re.findall(r"k\w+", parts) for option in arrays[part]]
    rows = "".join(re.findall(r"constexpr CommandSpec k\w*Commands\[\] = \{(.*?)\n\};", source, re.S))
    commands = re.findall(rf'\{{"(\w+)",[^k]*?(?:{STRING}\s*,?\s*)*(k\w+Options),', rows)
    return {command: arrays[array] for command, array in commands}, helps


def knobs(tree):
    """{kind: sorted names}"""
    commands, _ = option_table(tree)
    attention = {name for path, text in tree.product(CPP).items() if path.startswith("scheduler/attention/")
                 for name in re.findall(r'"([a-z0-9-]+\.[a-z_0-9]+)"', text)}  # fmt: skip
    policy = tree.named("make_policy.cpp")
    called = [name for helper, name in re.findall(r'(\w+)(?:<[^();]*>)?\(\s*"([a-z][a-z0-9-]*)",\s*\S', policy)
              if not helper.startswith("refuse")]  # fmt: skip
    listed = re.findall(r'\{\s*"([a-z][a-z0-9-]*)",\s*"', policy)
    variables = {name for text in tree.product(CPP | CUDA).values()
                 for name in re.findall(r'getenv\("(TRIPHASE_\w+)"', text)}  # fmt: skip
    return {
        "option names": sorted({option for options in commands.values() for option in options}),
        "attention options": sorted(attention),
        "policy options": sorted(set(called) | set(listed)),
        "environment variables": sorted(variables),
    }


def before_hint(statement):
    return " ".join(re.findall(STRING, statement.split(".hint(")[0]))


def refused_pairs(tree):
    """(option rows, places), one line of text each."""
    _, helps = option_table(tree)
    rows = [f"--{option} ({array}): {text}" for (array, option), text in helps.items() if COMPANY.search(text)]
    helper = re.compile(r"\brefuse\w*(?: = \[[^\]]*\])?\s*\([^)]*\)[^{;]*\{\s*throw ([^;]*);\s*\}")
    places = []
    for name, text in sorted(tree.product(CPP).items()):
        text = re.sub(r"//[^\n]*", "", text)
        throwing = {re.match(r"refuse\w*", match[0])[0]: before_hint(match[1]) for match in helper.finditer(text)}
        for statement in re.findall(r"\b(?:throw Error|refuse\w*)\([^;]*;", helper.sub("", text)):
            called = re.match(r"refuse\w*|throw", statement)[0]
            if called != "throw" and called not in throwing:
                continue
            words = before_hint(statement) + throwing.get(called, "")
            options = set(OPTION_NAME.findall(words)) - {"--policy-option", "--attention-option"}
            if "E-CLI-CONFLICT" in words or ("E-CLI-" in words and len(options) > 1):
                places.append(f"{name}: {' '.join(statement.split())[:150]}")
    return rows, places


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


def way_of_the_data(tree):
    text = tree.text.get("docs/ARCHITECTURE.md", "")
    diagram = re.search(r"## The way of the data\s+```\n(.*?)```", text, re.S)
    found, folder = set(), ""
    stems = {re.sub(r"\.(?:h|cpp)$", "", name) for name in tree.files if name.endswith((".h", ".cpp"))}
    for line in (diagram[1] if diagram else "").splitlines():
        names = re.match(r"\s*(?:-> )?([a-z_/0-9, ]+?)(?:  |$)", line)
        for name in re.split(r",\s*", names[1]) if names else []:
            stem = name if "/" in name else f"{folder}/{name}"
            if stem in stems:
                found.add(stem)
                folder = stem.rsplit("/", 1)[0]
    return sorted(found)


def included(tree, start="runtime/generate.cpp"):
    seen, waiting = set(), [start]
    while waiting:
        for header in re.findall(r'^#include "([^"]+)"', tree.text.get(waiting.pop(), ""), re.M):
            if header not in seen and header in tree.text:
                seen.add(header)
                waiting.append(header)
    return sorted(seen)


def numbers(tree):
    """{row: text} of the table, in its order."""
    table = {}
    counts = sizes(tree)
    for (kind, room), (lines, files) in sorted(counts.items()):
        table[f"{kind}, {room}"] = f"{lines:,} lines, {files} files"
    commands, _ = option_table(tree)
    for command, options in commands.items():
        table[f"options of {command}"] = str(len(options))
    table["option rows, all commands"] = str(sum(map(len, commands.values())))
    kinds = knobs(tree)
    for kind, names in kinds.items():
        table[kind] = str(len(names))
    table["knobs"] = str(sum(map(len, kinds.values())))
    table["error codes"] = str(len(re.findall(r"^TRIPHASE_ERROR_CODE\(", tree.named("error_codes.inc"), re.M)))
    rows, places = refused_pairs(tree)
    table["refused pairs"] = f"{len(rows) + len(places)} ({len(rows)} option rows, {len(places)} places)"
    found = classes(tree)
    for rank, (members, methods, where) in enumerate(sorted(found, reverse=True)[:5], 1):
        table[f"most members, {rank}"] = f"{members} + {methods} functions ({where})"
    for rank, (members, methods, where) in enumerate(sorted(found, key=lambda one: -one[1])[:5], 1):
        table[f"most member functions, {rank}"] = f"{methods} + {members} members ({where})"
    longest = functions(tree)
    for rank, (lines, where) in enumerate(longest[:5], 1):
        table[f"longest function, {rank}"] = f"{lines} lines ({where})"
    table["functions over 60 lines"] = str(sum(lines > 60 for lines, _ in longest))
    table["files on a prompt's way"] = str(len(way_of_the_data(tree)))
    table["headers under runtime/generate.cpp"] = str(len(included(tree)))
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", nargs="*", metavar="ROOT", help="checkouts of the repository (default: this one)")
    parser.add_argument("--list", action="store_true", help="also print what was counted, of the last root")
    arguments = parser.parse_args()
    roots = arguments.roots or [str(pathlib.Path(__file__).resolve().parents[2])]
    if len(roots) > 2:
        parser.error("one root or two")
    trees = [Tree(root) for root in roots]
    columns = [numbers(tree) for tree in trees]
    print("| |" + (" before | after |" if len(columns) == 2 else " now |"))
    print("|---|" + "---|" * len(columns))
    for row in dict.fromkeys(row for column in columns for row in column):
        print(f"| {row} | " + " | ".join(column.get(row, "-") for column in columns) + " |")
    if arguments.list:
        rows, places = refused_pairs(trees[-1])
        for title, names in {**knobs(trees[-1]), "refused pairs, option rows": rows, "refused pairs, places": places,
                             "files on a prompt's way": way_of_the_data(trees[-1])}.items():  # fmt: skip
            print(f"\n{title}:\n" + "\n".join(f"  {name}" for name in names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
