#!/usr/bin/env python3
"""triphase compare: rows, equal completions, and a page that stands alone.

Usage: compare_test.py TRIPHASE MODEL PROMPTS
"""

import csv
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "schemas" / "compare.schema.json"
PROGRAM, MODEL, PROMPTS = sys.argv[1], sys.argv[2], sys.argv[3]


class Compare(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.report = Path(self.folder.name) / "report"

    def compare(self, *extra: str, prompts: str = PROMPTS, model: str = MODEL, **options) -> subprocess.CompletedProcess:
        return subprocess.run(
            [PROGRAM, "compare", "--model", model, "--prompts", prompts, "--output", str(self.report),
             "--max-context", "384", "--max-tokens", "12", *extra],
            capture_output=True, text=True, timeout=300, **options,
        )  # fmt: skip

    def test_one_policy_twice(self) -> None:
        done = self.compare(
            "--policies", "flexgen,flexgen:cpu", "--repeat", "1", "--kv-dtype", "bf16",
            "--batch-size", "8", "--device-memory", "16MiB", "--host-memory", "256MiB",
            "--policy-option", "flexgen:cpu.host-kv=cpu-attention",
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        moved, attended = json.loads((self.report / "compare.json").read_text())
        self.assertEqual([moved["policy"], attended["policy"]], ["flexgen", "flexgen:cpu"])
        self.assertEqual(attended["identical"], "yes")
        # Queries and results take the place of KV.
        self.assertLess(attended["to_device_bytes"], moved["to_device_bytes"])

    def test_an_array_element_compares_the_whole_job(self) -> None:
        prompts = Path(self.folder.name) / "in.jsonl"
        prompts.write_text('{"prompt": "a", "max_tokens": 2}\n' * 6)
        done = self.compare("--policies", "device-only", "--repeat", "1", prompts=str(prompts),
                            env={**os.environ, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})
        self.assertEqual(done.returncode, 0, done.stderr)
        records = (self.report / "runs" / "device-only-dense-0.jsonl").read_text().splitlines()
        self.assertEqual(len(records), 6)

    def test_rows_and_page(self) -> None:
        done = self.compare(
            "--policies", "triphase,vllm,zero", "--attention", "dense,local", "--kv-sparsity", "0.8",
            "--batch-size", "8", "--repeat", "2", "--device-memory", "17MiB", "--host-memory",
            "256MiB", "--emulate-link", "500MB/s", "--policy-option", "triphase.p1=2",
            "--policy-option", "triphase.alpha=0.8",
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads((self.report / "compare.json").read_text())
        self.assertEqual(
            [(row["policy"], row["attention"]) for row in rows],
            [(p, a) for a in ("dense", "local") for p in ("triphase", "vllm", "zero")],
        )
        schema = json.loads(SCHEMA.read_text())["items"]
        for row in rows:
            self.assertEqual(list(row), schema["required"])
            self.assertEqual(set(row), set(schema["properties"]))
            self.assertEqual(row["model"], MODEL)
            self.assertRegex(row["commit"], r"^([0-9a-f]{12}(-dirty)?|unknown)$")
            if row["policy"] == "zero":  # its batch does not fit
                self.assertIsNone(row["tokens_per_second"])
                self.assertIn("zero", row["infeasible"])
                self.assertEqual(row["tokens_per_second_samples"], [])
                continue
            self.assertLessEqual(row["slowest"], row["tokens_per_second"])
            self.assertLessEqual(row["tokens_per_second"], row["fastest"])
            self.assertEqual(sorted(row["tokens_per_second_samples"]), [row["slowest"], row["fastest"]])
            self.assertIn(row["prefill_seconds"], row["prefill_seconds_samples"])
            self.assertIn(row["decode_seconds"], row["decode_seconds_samples"])
            self.assertTrue(row["machine"].startswith("cpu: "))
            self.assertRegex(row["model_fingerprint"], "^xxh3:")
            self.assertGreater(row["compute_seconds"], 0)
            self.assertLessEqual(row["device_peak_bytes"], 17 << 20)
            self.assertIn("link", row["emulated"])
            if row["attention"] == "dense":
                self.assertEqual(row["agreement"], 1.0)
            else:
                self.assertLess(row["agreement"], 1.0)
            # Prompts longer than --max-context fail everywhere.
            self.assertEqual(row["failed_lines"], 8)
            self.assertRegex(row["failures"], r"^E-[A-Z-]+: 8 lines, the first: prompt: \d+ tokens")
        ran = {(row["policy"], row["attention"]): row for row in rows}
        self.assertEqual(ran["vllm", "dense"]["identical"], "yes")
        self.assertEqual(ran["vllm", "local"]["identical"], "yes")
        self.assertIsNone(ran["triphase", "dense"]["identical"])
        self.assertGreater(ran["triphase", "dense"]["to_host_bytes"], 0)
        self.assertGreater(ran["triphase", "dense"]["to_device_seconds"], 0)

        with (self.report / "compare.csv").open() as file:
            table = list(csv.DictReader(file))
        self.assertEqual([row["policy"] for row in table], [row["policy"] for row in rows])

        page = (self.report / "index.html").read_text()
        # Nothing is loaded from elsewhere, nothing runs.
        self.assertIsNone(re.search(r"<script|<link|<img|\bsrc=|@import|url\(", page))
        self.assertIn("prefers-color-scheme: dark", page)
        self.assertIn("@media print", page)
        self.assertIn("Emulated: ", page)
        self.assertIn("--emulate-link 500MB/s", page)
        self.assertIn("generated tokens per second", page)
        self.assertEqual(page.count(">8 lines failed<"), 0)
        self.assertEqual(page.count("(8 lines failed)"), 8)  # in the first chart, and by attention
        # The verdict opens the page, and nothing is called after a system that did not run.
        for attention in ("dense", "local"):
            self.assertRegex(done.stderr, f"With {attention} attention, (triphase|vllm-style) ")
            self.assertLess(page.index(f"With {attention} attention, "), page.index("<svg"))
        self.assertIsNone(re.search(r"\b(vllm|zero)\b(?!-style)", re.sub(r"--policy \w+", "", page)))
        self.assertIn("cannot run", page)
        # One reason for all four cells that ran.
        self.assertEqual(page.count("8 lines, the first: prompt:"), 1)
        pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
        # All cells by speed, throughput, lanes and bytes of either attention, agreement, and memory of
        # each of the four cells that ran.
        self.assertEqual(len(pictures), 12)
        for picture in pictures:
            xml.etree.ElementTree.fromstring(picture)
            self.assertNotIn("nan", picture)
        memory = [picture for picture in pictures if "KV bytes by step, triphase" in picture]
        self.assertEqual(len(memory), 2)
        for picture in memory:
            self.assertIn("Phase II", picture)

    def test_openai_lines(self) -> None:
        prompts = Path(self.folder.name) / "batch.jsonl"
        bodies = [
            {"model": "m", "prompt": ["Once upon a time", "Emma had"], "max_tokens": 4},
            {"model": "m", "prompt": [5] * 400, "max_tokens": 4},
        ]
        prompts.write_text("".join(
            json.dumps({"custom_id": f"r{at}", "method": "POST", "url": "/v1/completions", "body": body}) + "\n"
            for at, body in enumerate(bodies)
        ))  # fmt: skip
        done = self.compare("--policies", "device-only,vllm", "--attention", "dense,swa", "--kv-sparsity", "0.5",
                            "--repeat", "1", prompts=str(prompts))  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads((self.report / "compare.json").read_text())
        self.assertEqual([row["identical"] for row in rows], [None, "yes", None, "yes"])
        self.assertEqual([row["agreement"] for row in rows[:2]], [1.0, 1.0])
        for row in rows:
            self.assertRegex(row["failures"], r"^E-[A-Z-]+: 1 line: prompt: 400 tokens")

    def test_where_nothing_completed_nothing_is_identical(self) -> None:
        prompts = Path(self.folder.name) / "too-long.jsonl"
        prompts.write_text(json.dumps({"prompt_tokens": [5] * 400}) + "\n")
        done = self.compare(
            "--policies", "device-only,vllm", "--repeat", "1", "--progress", "plain", prompts=str(prompts)
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        for row in json.loads((self.report / "compare.json").read_text()):
            self.assertIsNone(row["identical"])
            self.assertGreater(row["failed_lines"], 0)
            self.assertEqual([row[name] for name in ("tokens_per_second", "slowest", "fastest")], [None] * 3)
            self.assertEqual(row["tokens_per_second_samples"], [])
            self.assertRegex(row["failures"], r"^E-[A-Z-]+: 1 line: prompt: 400 tokens")
        self.assertIn("triphase: No policy completed a line.", done.stderr)
        # Warnings of the prompt file are not repeated by cells and repetitions.
        for warning in ("warning: line 1: ", "would become error records", "warning: line 1 failed, "):
            self.assertEqual(done.stderr.count(warning), 1, done.stderr)
        self.assertIn("checking the cells' options", done.stderr)
        self.assertIn("run 1 of 4 (device-only, traced)", done.stderr)
        self.assertIn("run 4 of 4 (vllm, repetition 1 of 1)", done.stderr)

    def test_prompts_that_end_with_the_first_cell_are_refused(self) -> None:
        pipe = Path(self.folder.name) / "pipe"
        os.mkfifo(pipe)
        line = json.dumps({"prompt": "Once"}) + "\n"
        for prompts, found in (("-", "-"), ("/dev/stdin", "/dev/stdin, a pipe"), (str(pipe), f"{pipe}, a pipe")):
            with self.subTest(prompts=prompts):
                done = self.compare("--policies", "device-only", prompts=prompts, input=line)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(f"--prompts: {found}, expected a file", done.stderr)
                self.assertFalse(self.report.exists())

    def test_a_file_without_lines_is_named(self) -> None:
        prompts = Path(self.folder.name) / "empty.jsonl"
        prompts.write_text("\n")
        done = self.compare("--policies", "device-only,vllm", "--repeat", "1", prompts=str(prompts))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("The prompt file has no lines: nothing was compared.", done.stderr)
        self.assertIn("The prompt file has no lines", (self.report / "index.html").read_text())

    def test_lists_are_checked(self) -> None:
        for option, value in (
            ("--policies", "triphase,fastest"), ("--attention", "dens"), ("--batch-size", "4,x"),
            ("--policy", "vllm"), ("--policy-option", "p1=3"), ("--kv-sparsity", "0.5"),
            ("--policies", "triphase,vllm,triphase"), ("--attention", "dense,dense"), ("--batch-size", "1,2,01"),
            ("--policies", "vllm:a/b"), ("--policies", "vllm:"), ("--policies", "vllm:a.b"),
        ):  # fmt: skip
            with self.subTest(option=option, value=value):
                done = self.compare(option, value)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(option, done.stderr)
                self.assertFalse(self.report.exists())

    def test_a_policy_that_excludes_an_attention_method_is_a_cell_that_cannot_run(self) -> None:
        done = self.compare(
            "--policies", "device-only,flexgen", "--attention", "dense,swa", "--repeat", "1",
            "--policy-option", "flexgen.host-kv=cpu-attention", "--kv-sparsity", "0.5",
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads((self.report / "compare.json").read_text())
        why = {(row["policy"], row["attention"]): row["infeasible"] for row in rows}
        reason = "swa with --policy-option host-kv=cpu-attention, expected dense"
        self.assertEqual(why.pop(("flexgen", "swa")), reason)
        self.assertIn(f"cannot run: {reason}\n", done.stderr)
        self.assertEqual(set(why.values()), {None})
        self.assertIn("cannot run", (self.report / "index.html").read_text())

    def test_a_full_disk_is_not_resumed(self) -> None:
        done = self.compare(
            "--policies", "device-only", "--repeat", "1",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)),
        )  # fmt: skip
        self.assertEqual(done.returncode, 6, done.stderr)
        self.assertIn("the same command compares anew", done.stderr)
        self.assertNotIn("to resume", done.stderr)

    def test_no_report_stands_beside_runs_of_another(self) -> None:
        names = ("index.html", "compare.json", "compare.csv")
        prompts = Path(self.folder.name) / "in.jsonl"
        prompts.write_text('{"prompt": "a", "max_tokens": 2}\n')
        for _ in range(2):  # an earlier report is replaced
            done = self.compare("--policies", "device-only", "--repeat", "1", prompts=str(prompts))
            self.assertEqual(done.returncode, 0, done.stderr)
        before = [(self.report / name).read_bytes() for name in names]
        done = self.compare("--policies", "device-only", "--policy-option", "device-only.no=1")
        self.assertEqual(done.returncode, 2, done.stderr)
        # A refused comparison changes nothing.
        self.assertEqual([(self.report / name).read_bytes() for name in names], before)
        done = self.compare(
            "--policies", "device-only", "--repeat", "1",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)),
        )  # fmt: skip
        self.assertEqual(done.returncode, 6, done.stderr)
        self.assertEqual([name for name in names if (self.report / name).exists()], [])

    def test_a_path_that_is_not_utf8_is_escaped(self) -> None:
        model = os.fsencode(self.folder.name) + b"/m\xff"
        os.symlink(os.path.abspath(MODEL), model)
        prompts = Path(self.folder.name) / "in.jsonl"
        prompts.write_text('{"prompt": "a", "max_tokens": 2}\n')
        done = self.compare("--policies", "device-only", "--repeat", "1", model=os.fsdecode(model), prompts=str(prompts))
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in ("index.html", "compare.csv"):
            self.assertIn("/m\\xff", (self.report / name).read_text(encoding="utf-8"), name)

    def test_files_of_something_else_are_kept(self) -> None:
        self.report.mkdir()
        for name in ("index.html", "compare.json", "compare.csv"):
            with self.subTest(name=name):
                file = self.report / name
                file.write_text("<!doctype html>\n<html>my page</html>")
                done = self.compare("--policies", "device-only", "--device-memory", "1MiB")
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(f"{file}: --output: a file that is no report of compare, expected", done.stderr)
                self.assertEqual(file.read_text(), "<!doctype html>\n<html>my page</html>")
                file.unlink()

    def test_a_contradiction_in_the_last_cell_is_told_before_the_first_runs(self) -> None:
        # No cell can do what is asked.
        done = self.compare(
            "--policies", "flexgen", "--attention", "swa",
            "--policy-option", "flexgen.host-kv=cpu-attention",
        )  # fmt: skip
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("swa with --policy-option host-kv=cpu-attention", done.stderr)
        # Nor is an option of the last cell's policy wrong because of its cell.
        done = self.compare(
            "--policies", "device-only,flexgen", "--policy-option", "flexgen.pace=slow",
        )  # fmt: skip
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("pace=slow", done.stderr)
        self.assertNotIn("traced", done.stderr)
        self.assertFalse(self.report.exists(), "a refused comparison leaves no folder")

    def test_options_without_a_value_reach_the_runs(self) -> None:
        # The first run gets as far as what squeezed attention needs.
        done = self.compare("--ignore-eos", "--attention", "squeezed")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--fixed-context", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
