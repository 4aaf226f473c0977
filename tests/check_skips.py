#!/usr/bin/env python3
"""Fails when a test of a ctest run skipped itself that tests/expected_skips.txt does not name.

Usage: check_skips.py JUNIT_FILE    (written by ctest --output-junit)
"""

import pathlib
import re
import sys
import xml.etree.ElementTree

LIST = pathlib.Path(__file__).with_name("expected_skips.txt")


def expected():
    lines = [line for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    return [re.compile(line.split("  ", 1)[0]) for line in lines]


def skipped(report):
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            # A value parameter may stand behind the name, as a comment.
            yield case.get("name").split("  # GetParam()")[0]
        # unittest counts skips in its last line.
        for count in re.findall(r"^OK \((skipped=\d+)", case.findtext("system-out", ""), re.MULTILINE):
            yield f"{case.get('name')} ({count})"


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    names = list(skipped(sys.argv[1]))
    known = expected()
    other = [name for name in names if not any(pattern.fullmatch(name) for pattern in known)]
    for name in other:
        print(f"skipped, and not in tests/{LIST.name}: {name}", file=sys.stderr)
    print(f"skipped tests: {len(names)}, expected to: {len(names) - len(other)}")
    return 1 if other else 0


if __name__ == "__main__":
    sys.exit(main())
