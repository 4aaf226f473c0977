#!/usr/bin/env python3
"""Runs clang-tidy over the product's sources that the release build compiles.

A file that passed is not read again until it, a header of the repository that it includes, its compile command,
.clang-tidy or clang-tidy itself changes: passes are remembered in ~/.cache/triphase-tidy (or $XDG_CACHE_HOME).

With --seconds it begins with the files that changed last, and begins none after so many seconds.

Usage: check_tidy.py [--root .] [--build build/release] [--clang-tidy clang-tidy-14] [--seconds N]
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def text_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def headers_of(build):
    """By object file, what it was compiled from, as ninja remembers it."""
    headers, target = {}, None
    for line in text_of("ninja", "-C", str(build), "-t", "deps").splitlines():
        if line and not line.startswith(" "):
            target = line.split(": #deps", 1)[0]
        elif line.strip() and target is not None:
            headers.setdefault(target, []).append(line.strip())
    return headers


def commands_of(build):
    """Without g++'s precompiled headers, which clang cannot read: a file includes what it needs itself."""
    entries = json.loads((build / "compile_commands.json").read_text())
    for entry in entries:
        entry["command"] = re.sub(r" -Winvalid-pch -include \S+/cmake_pch\.hxx", "", entry["command"])
    return entries


def newest_first(root):
    """Sources in the order in which they changed last, as far back as git knows here."""
    order = {}
    for name in text_of("git", "-C", str(root), "log", "--name-only", "--format=", "--", "*.cpp").split():
        order.setdefault(name, len(order))
    return order


class Passes:
    def __init__(self, root, build, tidy):
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.folder = cache / "triphase-tidy"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.root, self.build = root, build
        self.common = text_of(tidy, "--version") + (root / ".clang-tidy").read_text()
        self.headers = headers_of(build)
        self.hashes = {}

    def _hash(self, path):
        if path not in self.hashes:
            self.hashes[path] = hashlib.sha256(path.read_bytes()).hexdigest()
        return self.hashes[path]

    def key(self, entry):
        """What the verdict on a file depends on; none where its headers are not known."""
        output = re.search(r" -o (\S+)", entry["command"])
        headers = self.headers.get(output[1]) if output else None
        if headers is None:
            return None
        digest = hashlib.sha256(self.common.encode())
        # Wherever the checkout lies.
        digest.update(entry["command"].replace(str(self.root), ".").encode())
        for name in sorted({(self.build / header).resolve() for header in headers}):
            if name.is_relative_to(self.root):
                digest.update(f"{name.relative_to(self.root)} {self._hash(name)}".encode())
        return digest.hexdigest()

    def has(self, key):
        return key is not None and (self.folder / key).exists()

    def add(self, key):
        if key is not None:
            (self.folder / key).touch()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--clang-tidy", default="clang-tidy-14")
    parser.add_argument("--seconds", type=float)
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    build = arguments.build.resolve()
    tracked = set(text_of("git", "-C", str(root), "ls-files", "*.cpp").split())
    passes = Passes(root, build, arguments.clang_tidy)
    left, files = {}, 0
    entries = commands_of(build)
    for entry in entries:
        path = (Path(entry["directory"]) / entry["file"]).resolve()
        name = str(path.relative_to(root)) if path.is_relative_to(root) else ""
        if name not in tracked or name.startswith("tests/"):
            continue
        files += 1
        key = passes.key(entry)
        if not passes.has(key):
            left[path] = key

    begun = time.monotonic()
    if arguments.seconds is not None:
        order = newest_first(root)
        left = dict(sorted(left.items(), key=lambda item: order.get(str(item[0].relative_to(root)), len(order))))

    folder = tempfile.TemporaryDirectory()
    Path(folder.name, "compile_commands.json").write_text(json.dumps(entries))

    def run(path):
        if arguments.seconds is not None and time.monotonic() - begun >= arguments.seconds:
            return None
        return subprocess.run([arguments.clang_tidy, "-p", folder.name, "--quiet",
                               "--extra-arg=-Wno-unknown-warning-option", str(path)],
                              check=False, capture_output=True, text=True)

    failed = unread = 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for path, done in zip(left, pool.map(run, left), strict=True):
            if done is None:
                unread += 1
                continue
            if done.returncode == 0:
                passes.add(left[path])
                continue
            failed += 1
            print(done.stdout, "\n".join(line for line in done.stderr.splitlines()
                                         if "warnings generated" not in line), sep="", file=sys.stderr)
    time_up = f", {unread} left unread: the time is up" if unread else ""
    print(f"clang-tidy: {files} files, {len(left) - unread} of them read, {failed} with findings{time_up}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
