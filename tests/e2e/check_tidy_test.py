#!/usr/bin/env python3
"""tools/check_tidy.py: a file that passed is read again when what it is made of changes, and not before.

Usage: check_tidy_test.py ROOT
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(sys.argv[1])
NINJA = """rule cc
  command = c++ -c $in -MD -MF $out.d -o $out
  deps = gcc
  depfile = $out.d
build a.o: cc {root}/a.cpp
build b.o: cc {root}/b.cpp
"""
# Finds fault with files that say so, and writes down which it read.
TIDY = """#!/bin/sh
[ "$1" = --version ] && echo version {version} && exit 0
for file; do :; done
echo "$(basename "$file")" >> {log}
! grep -q fault "$file"
"""


class CheckTidy(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.tidy = self.folder / "tidy"
        self.log = self.folder / "log"
        self.make_tidy(1)

    def make_tidy(self, version):
        self.tidy.write_text(TIDY.format(version=version, log=self.log))
        self.tidy.chmod(0o755)

    def checkout(self, name):
        root = self.folder / name
        build = root / "build"
        build.mkdir(parents=True)
        (root / ".clang-tidy").write_text("Checks: all\n")
        (root / "a.h").write_text("int number();\n")
        (root / "a.cpp").write_text('#include "a.h"\nint number() { return 1; }\n')
        (root / "b.cpp").write_text("int other() { return 2; }\n")
        subprocess.run(["git", "init", "-q", root], check=True)
        subprocess.run(["git", "-C", root, "add", "*.cpp"], check=True)
        (build / "build.ninja").write_text(NINJA.format(root=root))
        (build / "compile_commands.json").write_text(json.dumps([
            {"directory": str(build), "file": str(root / f"{name}.cpp"),
             "command": f"c++ -c {root}/{name}.cpp -o {name}.o"} for name in ("a", "b")]))
        return root

    def read(self, root, *options, code=0):
        """The files that a check reads."""
        subprocess.run(["ninja", "-C", root / "build"], check=True, stdout=subprocess.DEVNULL)
        self.log.write_text("")
        done = subprocess.run([sys.executable, ROOT / "tools/check_tidy.py", "--root", root, "--build", root / "build",
                               "--clang-tidy", self.tidy, *options], env={**os.environ, "XDG_CACHE_HOME": str(self.folder)},
                              check=False, capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        return sorted(self.log.read_text().split())

    def test_only_what_changed_is_read_again(self):
        root = self.checkout("one")
        self.assertEqual(self.read(root), ["a.cpp", "b.cpp"])
        self.assertEqual(self.read(root), [])
        self.assertEqual(self.read(self.checkout("another")), [])
        (root / "a.h").write_text("int number(); // changed\n")
        self.assertEqual(self.read(root), ["a.cpp"])
        (root / ".clang-tidy").write_text("Checks: more\n")
        self.assertEqual(self.read(root), ["a.cpp", "b.cpp"])
        self.make_tidy(2)
        self.assertEqual(self.read(root), ["a.cpp", "b.cpp"])

    def test_a_fault_is_found_until_it_is_mended(self):
        root = self.checkout("one")
        (root / "b.cpp").write_text("int other() { return 2; } // fault\n")
        self.assertEqual(self.read(root, code=1), ["a.cpp", "b.cpp"])
        self.assertEqual(self.read(root, code=1), ["b.cpp"])
        (root / "b.cpp").write_text("int other() { return 2; }\n")
        self.assertEqual(self.read(root), ["b.cpp"])

    def test_within_a_time_the_files_that_changed_last_come_first(self):
        root = self.checkout("one")
        git = ("git", "-C", root, "-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run([*git, "commit", "-qm", "both"], check=True)
        (root / "b.cpp").write_text("int other() { return 3; } // fault\n")
        subprocess.run([*git, "commit", "-qam", "b"], check=True)
        self.assertEqual(self.read(root, "--seconds", "0"), [])
        processors = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, processors)
        os.sched_setaffinity(0, {min(processors)})  # so that one file is read at a time
        self.read(root, "--seconds", "1000", code=1)
        self.assertEqual(self.log.read_text().split(), ["b.cpp", "a.cpp"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
