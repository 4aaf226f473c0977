#!/usr/bin/env python3
"""tests/check_skips.py lets expected skips pass and names all others.

Usage: check_skips_test.py SOURCE_DIR
"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECKER = Path(sys.argv.pop(1)) / "tests" / "check_skips.py"
RAN = '<testcase name="{}" status="run"><system-out>{}</system-out></testcase>'
SKIPPED = '<testcase name="{}" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/></testcase>'


class CheckSkips(unittest.TestCase):
    def check(self, *cases):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as report:
            report.write(f"<testsuite>{''.join(cases)}</testsuite>")
            report.flush()
            done = subprocess.run([sys.executable, CHECKER, report.name], capture_output=True, text=True)
        return done.returncode, done.stderr

    def test_tests_that_ran_and_expected_skips_pass(self):
        cases = (RAN.format("Suite.Test", ""), SKIPPED.format("Targets/KernelTest.Adds/avx512"),
                 RAN.format("convert_to_safetensors", "Ran 9 tests in 1s\n\nOK (skipped=1)\n"))
        self.assertEqual(self.check(*cases), (0, ""))

    def test_another_skip_is_named(self):
        code, errors = self.check(SKIPPED.format("Suite.NeedsData/neox"), RAN.format("Suite.Test", ""))
        self.assertEqual(code, 1)
        self.assertIn("Suite.NeedsData/neox", errors)
        self.assertNotIn("Suite.Test", errors)

    def test_another_skip_inside_of_a_python_program_is_named(self):
        for name, count in (("eval_end_to_end", 1), ("convert_to_safetensors", 2)):
            code, errors = self.check(RAN.format(name, f"OK (skipped={count})"))
            self.assertEqual(code, 1)
            self.assertIn(f"{name} (skipped={count})", errors)


if __name__ == "__main__":
    unittest.main()
