#!/usr/bin/env python3
"""The forms of the attention methods as users ask for them: same answers on the device and through the host, what
they attend in the summary, and one line where there is no such option.

Usage: attention_test.py TRIPHASE MODEL PROMPTS
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM, MODEL, PROMPTS = sys.argv[1:4]
FORMS = {
    "topk": ["topk.k=16"],
    "quest": ["quest.k=48", "quest.dense_layers=0"],
    "h2o": ["h2o.k=20"],
    "lm-infinite": ["lm-infinite.sinks=4", "lm-infinite.k=20"],
}


class Attention(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = pathlib.Path(scratch.name)
        cls.prompts = cls.folder / "in.jsonl"
        cls.prompts.write_text("\n".join(pathlib.Path(PROMPTS).read_text().splitlines()[:8]) + "\n")

    def run_job(self, name, method, options, *extra, code=0):
        output = self.folder / f"{name}.jsonl"
        arguments = [PROGRAM, "run", "--model", MODEL, "--prompts", self.prompts, "--output", output, "--progress", "off",
                     "--threads", "2", "--max-tokens", "16", "--attention", method, *extra]
        for option in options:
            arguments += ["--attention-option", option]
        done = subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, timeout=300,
                              check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        if code != 0:
            return done.stderr
        return output.read_bytes(), json.loads(pathlib.Path(f"{output}.summary.json").read_text())

    def test_answers_do_not_depend_on_where_kv_lies(self):
        for method, options in FORMS.items():
            with self.subTest(method):
                alone, summary = self.run_job(f"{method}-device", method, options)
                self.assertLess(summary["attention"]["tokens_attended_fraction"], 0.7)
                through, moved = self.run_job(f"{method}-host", method, options, "--policy", "accelerate",
                                              "--device-memory", "30MiB", "--host-memory", "200MiB",
                                              "--batch-size", "4", "--max-context", "2048")
                self.assertEqual(alone, through)
                self.assertGreater(moved["moved_bytes"]["to_device"], 0)

    def test_what_does_not_fit_is_said_in_one_line(self):
        for name, method, option, expected in (
                ("variant", "h2o", "h2o.variant=mask", "h2o.k_ratio, h2o.local"),
                ("scope", "quest", "quest.scope=query_head", "quest.page")):
            with self.subTest(name):
                error = self.run_job(name, method, [option], code=2)
                lines = [line for line in error.splitlines() if "error:" in line]
                self.assertEqual(len(lines), 1, error)
                self.assertIn(expected, lines[0])

    def test_docs_name_every_option(self):
        docs = (pathlib.Path(__file__).parents[2] / "docs" / "attention.md").read_text()
        error = self.run_job("methods", "none", [], code=2)
        methods = re.split(", | or ", re.search(r"expected (.*) \[E-", error).group(1))
        self.assertIn("sparq", methods)
        for method in methods:
            error = self.run_job("options", method, ["none=1"], code=2)
            for option in re.findall(re.escape(method) + r"\.\w+", error):
                with self.subTest(option):  # a row lists "`sparq.k`, `.k_ratio`"
                    self.assertRegex(docs, rf"`{option}`|`{method}[.]\w+`, `[.]{option.removeprefix(method + '.')}`")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
