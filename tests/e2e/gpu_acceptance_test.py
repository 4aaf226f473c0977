#!/usr/bin/env python3
"""tools/gpu_acceptance: what it runs, keeps, goes on with and says.

    gpu_acceptance_test.py SOURCE_DIR                                          stand-ins for programs and nvidia-smi
    gpu_acceptance_test.py SOURCE_DIR TRIPHASE_EMULATED TRIPHASE TEST_PROGRAM  A0, A1, A4, A5 and A6 on the emulated device
"""

import json
import runpy
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

SOURCE = Path(sys.argv.pop(1)).resolve()
PROGRAMS = [Path(sys.argv.pop(1)).resolve() for _ in range(3)] if len(sys.argv) > 3 else []


# A GoogleTest program of one suite with the tests Good and Bad: `bad` and `whole` are shell commands, for Bad alone and
# for both.
SUITE = """
case "$*" in
  *list_tests*) printf 'Suite.\\n  Good\\n  Bad\\n'; exit 0 ;;
  *filter=Suite.Good*) exit 0 ;;
  *filter=Suite.Bad*) {bad} ;;
esac
for argument; do report=${{argument#--gtest_output=json:}}; done
echo ran >> ran.txt
{whole}
"""
REPORT = """echo '{"testsuites": [{"name": "Suite", "testsuite": [{"name": "Good", "result": "%s"},
{"name": "Bad", "result": "%s"%s}]}]}' > "$report\""""


def report(good, bad, extra=""):
    return REPORT % (good, bad, extra)


@unittest.skipIf(PROGRAMS, "programs are given")
class GpuAcceptance(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.kit = Path(self.temporary.name) / "kit"
        self.path = Path(self.temporary.name) / "path"
        (self.kit / "bin").mkdir(parents=True)
        self.path.mkdir()
        for tool in ("python3", "sh", "env", "sleep"):
            (self.path / tool).symlink_to(shutil.which(tool))
        shutil.copy(SOURCE / "tools" / "gpu_acceptance", self.kit)
        self.program("triphase", 'if [ "$1" = --version ]; then echo "commit: abc"; else echo "[{}]"; fi')
        self.suite(report("COMPLETED", "COMPLETED"))
        (self.kit / "bin" / "gpu_tests.txt").write_text("emulated:cpu_test\ngpu:card_test\n")

    def program(self, name, body, folder=None):
        file = (folder or self.kit / "bin") / name
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)

    def suite(self, whole, bad="exit 0"):
        self.program("card_test", SUITE.format(whole=whole, bad=bad))

    def add_gpu(self):
        self.program("nvidia-smi", "echo 'NVIDIA H200, 580.1'", self.path)

    def accept(self, *arguments):
        run = subprocess.run([sys.executable, str(self.kit / "gpu_acceptance"), *arguments], cwd=self.temporary.name,
                             env={"PATH": str(self.path), "HOME": self.temporary.name}, capture_output=True, text=True,
                             timeout=300, check=False)  # fmt: skip
        return run.returncode, run.stdout + run.stderr

    def results(self, gpu="nvidia-h200"):
        return json.loads((self.kit / "bench" / "results" / gpu / "acceptance.json").read_text())

    def suite_step(self):
        return self.results()["steps"]["A1/card_test/Suite"]

    def runs(self):
        return (Path(self.temporary.name) / "ran.txt").read_text().count("ran")

    def test_without_a_gpu_only_what_needs_none_runs(self):
        code, shown = self.accept()
        self.assertEqual(code, 5, shown)
        steps = self.results("no-gpu")["steps"]
        self.assertEqual(steps["A0/doctor"]["status"], "passed")
        self.assertEqual(steps["A1/card_test/Suite"]["status"], "skipped")
        self.assertIn("no GPU driver", steps["A2/gemm"]["why"])
        self.assertEqual(self.results("no-gpu")["commit"], "abc")

    def test_a_suite_passes_and_is_not_run_again_wherever_the_kit_lies(self):
        self.add_gpu()
        self.accept("A1")
        self.assertEqual(self.suite_step()["status"], "passed")
        self.assertEqual(self.suite_step()["note"], "2 tests")
        moved = self.kit.parent / "elsewhere"
        self.kit.rename(moved)
        self.kit = moved
        self.accept("A1")
        self.assertEqual(self.runs(), 1)
        self.accept("A1", "--again")
        self.assertEqual(self.runs(), 2)
        self.suite(f"true; {report('COMPLETED', 'COMPLETED')}")
        self.accept("A1")
        self.assertEqual(self.runs(), 3)

    def test_tests_after_a_crash_run_alone_and_a_failure_stays_until_retried(self):
        self.add_gpu()
        self.suite("kill -9 $$", bad="exit 3")
        code, shown = self.accept("A1")
        self.assertEqual(code, 1, shown)
        step = self.suite_step()
        self.assertEqual(step["status"], "failed")
        self.assertIn("2 failed or did not run; alone 1 of them pass, these fail: Bad", step["note"])
        self.assertEqual(self.accept("A1")[0], 1)
        self.assertEqual(self.runs(), 1)
        self.accept("A1", "--retry")
        self.assertEqual(self.runs(), 2)
        self.assertIn("these fail: Bad", (self.kit / "bench/results/nvidia-h200/summary.txt").read_text())

    def test_a_job_that_skips_itself_has_not_passed(self):
        self.add_gpu()
        jobs = self.kit / "share" / "triphase" / "tests" / "e2e"
        jobs.mkdir(parents=True)
        (jobs / "gpu_jobs_test.py").write_text(
            "import sys\nif False:\n    def test_a(): pass\n    def test_b(): pass\n"
            "if 'GpuJobs.test_a' in sys.argv: print(\"test_a ... skipped 'no models'\", file=sys.stderr)\n")  # fmt: skip
        (jobs / "gpu_matrix.py").write_text("import sys\nprint('matrix: 3 of 9 jobs')\nsys.exit(75)\n")
        self.assertEqual(self.accept("A4")[0], 75)
        steps = self.results()["steps"]
        self.assertEqual([steps[f"A4/{name}"]["status"] for name in ("a", "b", "matrix")], ["unavailable", "passed", "left"])
        self.assertIn("skipped: no models", steps["A4/a"]["note"])
        self.assertEqual(steps["A4/matrix"]["note"], "matrix: 3 of 9 jobs")

    def test_a_failed_assertion_fails_the_suite(self):
        self.add_gpu()
        self.suite(report("COMPLETED", "COMPLETED", ', "failures": [{"failure": "no"}]') + "; exit 1", bad="exit 1")
        self.assertEqual(self.accept("A1")[0], 1)
        self.assertIn("of 2 tests 1 failed", self.suite_step()["note"])

    def test_tests_that_all_skip_themselves_have_not_passed(self):
        self.add_gpu()
        self.suite(report("SKIPPED", "SKIPPED"))
        self.accept("A1")
        self.assertEqual(self.suite_step()["status"], "unavailable")

    def test_bench_rows_and_raw_output_are_kept(self):
        self.add_gpu()
        self.assertEqual(self.accept("A2")[0], 0)
        results = self.results()
        self.assertEqual(results["steps"]["A2/gemm"]["rows"], [{}])
        folder = self.kit / "bench" / "results" / "nvidia-h200"
        self.assertEqual((folder / results["steps"]["A2/gemm"]["raw"]).read_text(), "[{}]\n")

    def test_what_the_budget_cuts_off_is_left_for_the_next_call(self):
        self.add_gpu()
        self.suite(f"test -e begun || {{ : > begun; sleep 13; }}; {report('COMPLETED', 'COMPLETED')}")
        code, shown = self.accept("A1", "--budget", "0.18")
        self.assertEqual(code, 75, shown)
        self.assertEqual(self.suite_step()["status"], "left")
        self.accept("A1")
        self.assertEqual(self.suite_step()["status"], "passed")

    def test_a_device_that_fails_at_once_goes_without_warpgroup_products(self):
        self.add_gpu()
        self.suite(f"echo warpgroups=$TRIPHASE_WARPGROUPS; {report('COMPLETED', 'COMPLETED')}")
        line = "prompts' attention   by warpgroup products (wgmma)"
        for doctor, said, variable in ((f'echo "ok   {line}"; exit 1', "by warpgroup products (wgmma)", ""),
                                       ("kill -9 $$", "doctor: exit -9; all without warpgroup products", "0")):  # fmt: skip
            self.program("triphase", doctor)
            shown = self.accept("A1", "--again")[1]
            self.assertIn(f"prompts' attention: {said}\n", shown)
            folder = self.kit / "bench" / "results" / "nvidia-h200"
            self.assertEqual((folder / "summary.txt").read_text().splitlines()[0], f"prompts' attention: {said}")
            self.assertEqual((folder / self.suite_step()["raw"]).read_text(), f"warpgroups={variable}\n")

    def test_the_sanitizer_takes_one_test_a_step(self):
        self.add_gpu()
        self.program("compute-sanitizer", 'echo "$@"', self.path)
        self.program("cuda_backend_test", "printf 'CudaBackendOnGpu.\n  Good\n  Bad\nCudaBackend.\n  None\n'")
        (self.kit / "bin" / "gpu_tests.txt").write_text("gpu:cuda_backend_test\n")
        self.assertEqual(self.accept("A6")[0], 5)  # no cuda_kernels_test
        steps = self.results()["steps"]
        self.assertEqual(sorted(steps), ["A6/memcheck/CudaBackendOnGpu.Bad", "A6/memcheck/CudaBackendOnGpu.Good",
                                         "A6/racecheck/cuda_kernels_test"])  # fmt: skip
        self.assertEqual(steps["A6/memcheck/CudaBackendOnGpu.Bad"]["status"], "passed")

    def test_only_close_calls_excuse_other_tokens(self):
        def line(token, logprob, margin):
            return {"index": 0, "logprobs": [{"token": token, "logprob": logprob, "top": [[7, -1.0], [8, -1.0 - margin]]}]}

        script = SOURCE / "tests" / "e2e" / "gpu_jobs.py"
        with unittest.mock.patch.object(sys, "argv", [str(script), "triphase", "triphase", "--device", "cuda:0"]):
            jobs = runpy.run_path(str(script))
        self.assertIsNone(jobs["difference"](line(8, -1.1, 0.1), line(7, -1.0, 0.1)))
        self.assertIn("leads by 0.500", jobs["difference"](line(8, -1.1, 0.5), line(7, -1.0, 0.5)))
        self.assertIn("log-probability", jobs["difference"](line(7, -1.5, 0.1), line(7, -1.0, 0.1)))
        right, close, wrong = (json.dumps(line(*what)) for what in ((7, -1.0, 0.1), (8, -1.1, 0.1), (7, -2.0, 0.1)))
        found = [jobs["Answers"].compare(answers, right) for answers in (right, close, wrong, right + "\n" + right)]
        self.assertEqual(found[:2], ["same", "close"])
        self.assertIn("log-probability", found[2])
        self.assertEqual(found[3], "other lines")

    def test_misuse(self):
        self.assertEqual(self.accept("all")[0], 2)
        self.assertEqual(self.accept("A1", "--device", "tpu")[0], 2)


@unittest.skipUnless(PROGRAMS, "no programs are given")
class DryRun(unittest.TestCase):
    """The three commands for a real GPU, on the emulated one, in a kit of links."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.kit = Path(scratch.name) / "kit"
        (self.kit / "bin").mkdir(parents=True)
        (self.kit / "share" / "triphase").mkdir(parents=True)
        for name, program in zip(("triphase-emulated", "triphase", "kernels_test"), PROGRAMS, strict=True):
            (self.kit / "bin" / name).symlink_to(program)
        (self.kit / "bin" / "gpu_tests.txt").write_text("emulated:kernels_test\ngpu:gone\n")
        for folder in ("tests", "models"):
            (self.kit / "share" / "triphase" / folder).symlink_to(SOURCE / folder)
        (self.kit / "bench").symlink_to(SOURCE / "bench")
        shutil.copy(SOURCE / "tools" / "gpu_acceptance", self.kit)
        self.results = self.kit / "results" / "emulated"

    def accept(self, stage, *arguments, ending):
        run = subprocess.run([sys.executable, str(self.kit / "gpu_acceptance"), stage, "--device", "cuda:emulated",
                              "--results", str(self.kit / "results"), *arguments],
                             capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
        self.assertEqual(run.returncode, ending, run.stdout + run.stderr)
        return run.stdout

    def step(self, key):
        return json.loads((self.results / "acceptance.json").read_text())["steps"][key]

    def test_jobs(self):
        self.assertIn("A5 jobs: 4 passed", self.accept("A5", ending=0))
        note = self.step("A5/llama-3-8b")["note"]
        self.assertRegex(note, r"tokens/s by sampled steps.*predicted with profile h100-80gb.*estimate / full run: .*steps 1\.000")
        self.assertEqual([self.step(f"A5/opt-30b-{name}")["rows"][0]["configuration"] for name in ("triphase", "vllm", "flexgen")],
                         ["triphase", "vllm", "flexgen"])  # fmt: skip
        self.assertEqual(len(self.step("A5/opt-30b-vllm")["rows"][0]["samples"]), 3)

    def test_facts_truth_and_engine(self):
        self.assertIn("A0 facts: 2 passed", self.accept("A0", ending=5))
        self.assertIn("ok   program", (self.results / "raw" / "A0-doctor.out").read_text())
        self.assertEqual(self.step("A0/transfer")["why"], "an emulated device has no speed")

        # The measurements themselves, where there is something to measure.
        self.assertIn("gather host to device by 28672 B", self.accept("A0", "--device", "cpu", "--only", "link", ending=0))
        gathers = [row for row in json.loads((self.kit / "results" / "cpu" / "raw" / "A0-link.out").read_text())
                   if row["op"] == "gather"]  # fmt: skip
        self.assertEqual([row["bytes"] for row in gathers], [2 << 10, 4 << 10, 8 << 10, 16 << 10, 28 << 10])

        self.assertNotIn("failed", self.accept("A1", ending=0))
        self.assertIn("A6 sanitizer: 2 skipped", self.accept("A6", ending=5))
        suites = [step for key, step in json.loads((self.results / "acceptance.json").read_text())["steps"].items()
                  if key.startswith("A1/kernels_test/")]  # fmt: skip
        self.assertGreater(len(suites), 1)
        self.assertEqual({step["status"] for step in suites}, {"passed"})

        shown = self.accept("A4", "--only", "int8|budgets|devices", ending=0)
        self.assertIn("A4 engine: 3 passed", shown)
        self.assertIn("answers: 1 the same", self.step("A4/int8_kv")["note"])
        self.assertIn("before: A4/int8_kv", self.accept("A4", "--only", "int8", ending=0))

        cells = self.results / "raw" / "A4-matrix.jsonl"
        found, budget = [[]], 0.17
        while len(found) < 3:
            self.assertIn("A4 engine: 1 left", self.accept("A4", "--only", "matrix", "--budget", str(budget), ending=75))
            lines = cells.read_text().split("\n") if cells.exists() else []
            now = [json.loads(line) for line in lines if line]
            self.assertEqual({cell["verdict"] for cell in now} - {"same"}, set())
            if len(now) > len(found[-1]):
                found.append(now)
            else:  # a busy machine
                budget *= 2
        found = found[1:]
        self.assertGreater(len(found[1]), len(found[0]))
        self.assertEqual(found[1][: len(found[0])], found[0])
        self.assertEqual(len({cell["cell"] for cell in found[1]}), len(found[1]))
        self.assertRegex((self.results / "summary.txt").read_text(), r"A4/matrix +left .* 0 wrong")


if __name__ == "__main__":
    unittest.main()
