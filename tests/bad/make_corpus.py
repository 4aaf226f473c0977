#!/usr/bin/env python3
"""Builds the hostile corpus: one folder per case of every cases_*.py beside this file.

    make_corpus.py FOLDER [--only TEXT]

Each folder holds model/ and prompts.jsonl, damaged as the case says. run_bad.py does the same and
runs the program on each; this script is for looking at a case by hand and for fuzzing seeds.
"""

import argparse
import importlib
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

from bad_case import PROMPTS, ModelFolder  # noqa: E402


def load_cases():
    """Cases of every table, in the order of their files. Ids must be unique."""
    cases = []
    for file in sorted(HERE.glob("cases_*.py")):
        cases += importlib.import_module(file.stem).cases()
    ids = [case.id for case in cases]
    repeated = {name for name in ids if ids.count(name) > 1}
    if repeated:
        raise SystemExit(f"case ids used twice: {sorted(repeated)}")
    return cases


def build_case(case, folder: pathlib.Path):
    """The tiny valid model and prompts in `folder`, then what the case damages."""
    folder.mkdir(parents=True)
    ModelFolder(folder / "model").llama()
    (folder / "prompts.jsonl").write_bytes(PROMPTS)
    case.build(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", default="", help="cases whose id contains this text")
    options = parser.parse_args()
    for case in load_cases():
        if options.only in case.id:
            build_case(case, options.folder / case.id)


if __name__ == "__main__":
    main()
