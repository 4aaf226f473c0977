#!/usr/bin/env python3
"""The `triphase` program as a user runs it: what unit tests cannot see (bad-inputs R9-R12, X2-X9).

    run_test.py TRIPHASE          (unittest options may follow)

Standard library only; the model is the tiny one of the hostile corpus, prompts are token ids.
"""

import json
import os
import pathlib
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "bad"))

from bad_case import ModelFolder  # noqa: E402

PROGRAM = ""
LONG = 60  # tokens of a long line; the model's context is 64


def lines(count, max_tokens=2):
    return "".join(json.dumps({"id": f"n{n}", "prompt_tokens": [3 + n % 20, 4], "max_tokens": max_tokens})
                   + "\n" for n in range(count))


class RunTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="triphase-e2e-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        ModelFolder(self.folder / "model").llama()
        self.output = self.folder / "out.jsonl"

    def command(self, *extra, prompts="in.jsonl", output="out.jsonl"):
        return [PROGRAM, "run", "--model", "model", "--prompts", prompts, "--output", output, *extra]

    def run_job(self, *extra, text=None, input=None, prompts="in.jsonl", output="out.jsonl", **options):
        if text is not None:
            (self.folder / "in.jsonl").write_text(text, encoding="utf-8")
        return subprocess.run(self.command(*extra, prompts=prompts, output=output), cwd=self.folder,
                              capture_output=True, input=input, check=False, timeout=300, **options)

    def start_long_job(self, *extra):
        """A job that runs for minutes unless it is stopped."""
        (self.folder / "in.jsonl").write_text(lines(400_000, LONG), encoding="utf-8")
        process = subprocess.Popen(self.command("--ignore-eos", *extra), cwd=self.folder,
                                   stderr=subprocess.PIPE)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 300
        part = self.folder / "out.jsonl.part"
        while not (part.exists() and part.stat().st_size > 0):
            self.assertIsNone(process.poll(), "it ended by itself")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        return process

    def summary(self):
        return json.loads((self.folder / "out.jsonl.summary.json").read_text())

    def records(self):
        return [json.loads(line) for line in self.output.read_text().splitlines()]

    def test_completes_a_file_and_says_so(self):
        result = self.run_job(text=lines(20) + "\nnot json\n")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stdout, b"")
        self.assertEqual([record["index"] for record in self.records()], [*range(20), 21])
        self.assertIn(b"1 failed (--retry-failed redoes them)", result.stderr)
        self.assertEqual(result.stderr.count(b"line 22 failed, E-IN-JSON: "), 1, result.stderr)
        summary = self.summary()
        self.assertEqual(summary["requests"], {"total": 21, "succeeded": 20, "failed": 1,
                                               "failed_by_code": {"E-IN-JSON": 1}, "resumed": 0})
        self.assertTrue(summary["complete"])
        self.assertEqual(summary["exit_code"], 1)

    def test_a_dash_is_standard_output(self):
        expected = self.run_job(text=lines(9) + "not json\n")
        self.assertEqual(expected.returncode, 1)
        scratch = self.folder / "scratch"
        scratch.mkdir()
        before = sorted(self.folder.iterdir())
        for name in ("-", "/dev/stdout"):
            result = self.run_job(output=name, env={**os.environ, "TMPDIR": str(scratch)})
            self.assertEqual((result.returncode, result.stdout), (1, self.output.read_bytes()), result.stderr)
            self.assertIn(b"standard output: 10 records, 1 failed", result.stderr)
        self.assertEqual(sorted(self.folder.iterdir()), before)
        self.assertEqual(list(scratch.iterdir()), [])
        (self.folder / "in.jsonl").write_text("\n" + lines(400_000, LONG), encoding="utf-8")
        process = subprocess.Popen(self.command("--ignore-eos", output="-"), cwd=self.folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(scratch)})
        printed = [process.stdout.readline() for _ in range(3)]  # long before the job's end
        self.assertIsNone(process.poll(), "it ended by itself")
        process.send_signal(signal.SIGTERM)
        printed += process.stdout.readlines()  # communicate() would lose what is buffered
        errors = process.stderr.read()
        self.assertEqual(process.wait(timeout=300), -signal.SIGTERM)
        process.stdout.close()
        process.stderr.close()
        self.assertTrue(printed[-1].endswith(b"\n"))
        self.assertEqual([json.loads(record)["index"] for record in printed], list(range(1, len(printed) + 1)))
        self.assertRegex(errors, rb"stopped: \d+ records were finished, %d printed" % len(printed))
        self.assertIn(b"give an --output FILE to be able to go on", errors)
        self.assertNotIn(b"resume", errors)
        self.assertEqual(list(scratch.iterdir()), [])

    def test_a_pipe_is_answered_as_lines_finish(self):
        scratch = self.folder / "scratch"
        scratch.mkdir()
        process = subprocess.Popen(self.command("--order", "completed", prompts="-", output="-"), cwd=self.folder,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, "TMPDIR": str(scratch)})
        self.addCleanup(process.kill)
        printed = []
        for line in lines(3).splitlines() + ["not json"]:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            printed.append(process.stdout.readline())
        rest, errors = process.communicate(timeout=60)
        self.assertEqual((process.returncode, rest), (1, ""), errors)
        self.assertEqual([json.loads(record)["index"] for record in printed], [0, 1, 2, 3])
        self.run_job("--order", "completed", text=lines(3) + "not json\n")
        self.assertEqual(sorted(printed), sorted(self.output.read_text().splitlines(keepends=True)))
        self.assertEqual(list(scratch.iterdir()), [])

    def test_a_blank_line_of_a_pipe_loses_no_record(self):
        text = lines(2) + "\n" + lines(3) + "not json\n"
        self.assertEqual(self.run_job(text=text).returncode, 1)
        result = subprocess.run(self.command(prompts="-", output="-"), cwd=self.folder, input=text.encode(),
                                capture_output=True, check=False)
        self.assertEqual((result.returncode, result.stdout), (1, self.output.read_bytes()), result.stderr)

    def test_a_reader_that_pauses_is_waited_for(self):
        (self.folder / "in.jsonl").write_text(lines(2000), encoding="utf-8")
        process = subprocess.Popen(self.command("--watchdog", "3s", output="-"), cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        printed = [process.stdout.readline()]
        time.sleep(6)
        self.assertIsNone(process.poll(), "its records fit into the pipe")
        printed += process.stdout.readlines()
        errors = process.stderr.read()
        self.assertEqual((process.wait(timeout=60), len(printed)), (0, 2000), errors)
        process.stdout.close()
        process.stderr.close()

    def test_a_pipe_that_nobody_reads_ends_the_job(self):
        process = subprocess.Popen(self.command("--order", "completed", prompts="-", output="-"), cwd=self.folder,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        process.stdout.close()
        process.stdin.write(lines(1))
        process.stdin.flush()
        self.assertEqual(process.wait(timeout=60), 6)
        self.assertIn("[E-IO-WRITE]", process.stderr.read())
        process.stdin.close()
        process.stderr.close()

    def test_what_nobody_knows_is_named_once(self):
        text = "".join(json.dumps({"prompt_tokens": [3, 4], "stream": n < 2, "max_new_tokens": 3}) + "\n"
                       for n in range(3))
        result = self.run_job("--ignore-eos", text=text, env={**os.environ, "TRIPHASE_BATCHSIZE": "3"})
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr.count(b'field "stream" of 3 lines is not known and was ignored'), 1)
        self.assertEqual(result.stderr.count(b"TRIPHASE_BATCHSIZE is set, but no option has that name"), 1)
        self.assertEqual([len(record["tokens"]) for record in self.records()], [3, 3, 3])

    def test_models_that_are_none_say_what_to_do(self):
        (self.folder / "adapter").mkdir()
        (self.folder / "adapter" / "adapter_config.json").write_text("{}")
        (self.folder / "model.gguf").write_text("GGUF")
        (self.folder / "ggufs").mkdir()
        (self.folder / "ggufs" / "q4.gguf").write_text("GGUF")
        (self.folder / "empty").mkdir()
        (self.folder / "cache" / "snapshots" / "0ab").mkdir(parents=True)
        (self.folder / "cache" / "snapshots" / "0ab" / "config.json").write_text("{}")
        (self.folder / "weights.safetensors").write_text("")
        (self.folder / "in.jsonl").write_text(lines(1))
        for name, hint in (("openai-community/gpt2", "hf download openai-community/gpt2"), ("model.gguf", "GGUF"),
                           ("adapter", "merge_and_unload"), ("ggufs", "GGUF"), ("empty", "empty is no model directory"),
                           ("cache", "did you mean cache/snapshots/0ab?"), ("qwen3:8b", "hf download OWNER/qwen3 "),
                           ("https://huggingface.co/Qwen/Qwen3-8B", "hf download Qwen/Qwen3-8B "),
                           ("weights.safetensors", "the directory that holds"),
                           ("opt-6.7b", "--random-weights makes some"), ("opt-6.8b", "built-in shape opt-6.7b")):
            result = subprocess.run([PROGRAM, "run", "--model", name, "--prompts", "in.jsonl", "--output", "out.jsonl"],
                                    cwd=self.folder, capture_output=True, check=False, timeout=300)
            self.assertEqual(result.returncode, 3, result.stderr)
            self.assertIn(hint.encode(), result.stderr.splitlines()[-1])
        inspected = subprocess.run([PROGRAM, "inspect", "--model", "openai-community/gpt2"], cwd=self.folder,
                                   capture_output=True, check=False)
        self.assertIn(b"hf download openai-community/gpt2", inspected.stderr)
        shape = subprocess.run([PROGRAM, "run", "--model", "opt-6.8b", "--random-weights", "--prompts", "in.jsonl",
                                "--output", "out.jsonl"], cwd=self.folder, capture_output=True, check=False)
        self.assertIn(b"did you mean opt-6.7b?", shape.stderr)

    def test_budgets_beyond_the_machine_are_refused_before_loading(self):
        (self.folder / "in.jsonl").write_text(lines(1))
        for budget in (["--device-memory=4000GiB"], ["--device-memory=8GiB", "--host-memory=4000GiB"]):
            result = subprocess.run([PROGRAM, "run", "--model", "opt-30b", "--random-weights", "--prompts", "in.jsonl",
                                     "--output", "out.jsonl", "--batch-size=256", "--dry-run", *budget],
                                    cwd=self.folder, capture_output=True, check=False, timeout=300)
            self.assertEqual(result.returncode, 5, result.stderr)
            self.assertIn(b"which this machine or container has left", result.stderr)
            self.assertIn(b"E-MEM-FIT", result.stderr)

    def test_streamed_weights_count_to_the_host_budget(self):
        (self.folder / "in.jsonl").write_text(lines(1))
        for budget, code in (("256MiB", 5), ("3GiB", 0)):
            result = subprocess.run([PROGRAM, "run", "--model", "opt-1.3b", "--random-weights", "--prompts", "in.jsonl",
                                     "--output", "out.jsonl", "--batch-size=1", "--max-context=256", "--dry-run",
                                     "--device-memory=1GiB", f"--host-memory={budget}"],
                                    cwd=self.folder, capture_output=True, check=False, timeout=300)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertEqual(b"256.0 MiB, and streamed weights take 1.7 GiB there" in result.stderr, code == 5, result.stderr)

    def test_quiet_is_silent(self):
        result = self.run_job("-q", text=lines(3))
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, b"", b""))

    def test_signals_end_cleanly_and_the_job_resumes(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            with self.subTest(number):
                for path in self.folder.glob("out.jsonl*"):
                    path.unlink()
                process = self.start_long_job()
                process.send_signal(number)
                _, errors = process.communicate(timeout=300)
                self.assertEqual(process.returncode, -number)
                self.assertIn(b"run the same command to resume", errors)
                self.assertFalse(self.output.exists())
                part = (self.folder / "out.jsonl.part").read_bytes()
                self.assertTrue(part.endswith(b"\n"))
                summary = self.summary()
                self.assertEqual(summary["exit_code"], 128 + number)
                self.assertFalse(summary["complete"])
                self.assertEqual(summary["requests"]["succeeded"], part.count(b"\n"))

    def test_one_signal_ends_what_has_nothing_to_keep(self):
        os.mkfifo(self.folder / "fifo")
        (self.folder / "in.jsonl").write_text(lines(1))
        shape = ["--profile", "h100-80gb", "--batch-size", "4", "--input-len", "128", "--output-len", "200000"]
        for begun, name, *arguments in (
            (b"reading prompts", "run", "--model", "model", "--prompts", "fifo", "--output", "out.jsonl"),
            (b"loading model", "run", "--model", "opt-1.3b", "--random-weights", "--prompts", "in.jsonl",
             "--output", "out.jsonl"),
            (b"measuring memory", "profile", "--model", "model", "--output", "profile.json", "--time", "600s"),
            (None, "simulate", "--model", "opt-1.3b", *shape),
            (None, "plan", "--model", "opt-1.3b", "--output", "plan.json", *shape),
        ):  # fmt: skip
            with self.subTest(name, arguments=arguments):
                process = subprocess.Popen([PROGRAM, name, *arguments], cwd=self.folder, stdout=subprocess.DEVNULL,
                                           stderr=subprocess.PIPE)
                if begun is None:  # these two write nothing before they end
                    self.await_signal_handlers(process)
                else:
                    self.assertTrue(any(begun in line for line in process.stderr), "it ended by itself")
                self.assertIsNone(process.poll(), "it ended by itself")
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=30)
                self.assertEqual(process.returncode, -signal.SIGTERM)

    def await_signal_handlers(self, process):
        """Until SIGTERM has a handler; also before that the signal ends the program."""
        caught = 0
        while not caught >> (signal.SIGTERM - 1) & 1:
            self.assertIsNone(process.poll(), "it ended by itself")
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
            time.sleep(0.01)

    def test_the_way_to_resume_leaves_out_what_would_discard_the_records(self):
        process = self.start_long_job("--overwrite")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
        self.assertIn(b"run the same command without --overwrite to resume", errors)

    def test_the_second_signal_ends_at_once(self):
        process = self.start_long_job()
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
        self.assertEqual(process.returncode, -signal.SIGINT)
        self.assertTrue((self.folder / "out.jsonl.part").read_bytes().endswith(b"\n"))

    def test_two_runs_on_one_output(self):
        process = self.start_long_job()
        result = self.run_job("--ignore-eos")
        self.assertEqual(result.returncode, 4)
        self.assertIn(f"process {process.pid} on".encode(), result.stderr)
        self.assertIn(b"E-IN-LOCKED", result.stderr)
        process.kill()
        process.communicate()

    def test_a_working_directory_that_is_gone(self):
        (self.folder / "in.jsonl").write_text(lines(2), encoding="utf-8")
        gone = self.folder / "gone"
        gone.mkdir()
        done = subprocess.run([PROGRAM, "run", "--model", self.folder / "model", "--prompts", self.folder / "in.jsonl",
                               "--output", "out.jsonl"], cwd=gone, capture_output=True, check=False, timeout=300,
                              preexec_fn=lambda: gone.rmdir())
        self.assertEqual(done.returncode, 6, done.stderr)
        self.assertIn(b"E-IO-OPEN", done.stderr)
        self.assertNotIn(b"KV", done.stderr, "nothing was planned or loaded")

    def test_more_threads_than_cores_are_warned_of(self):
        core = min(os.sched_getaffinity(0))
        for threads, warned in (("1", False), ("2", True)):
            result = self.run_job("--threads", threads, "--overwrite", text=lines(2),
                                  preexec_fn=lambda: os.sched_setaffinity(0, {core}))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(b"warning: --threads 2: this process may use 1 core;" in result.stderr, warned,
                             result.stderr)

    def test_file_size_limit_is_a_full_disk(self):
        result = self.run_job(text=lines(2000), preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_FSIZE, (20_000, 20_000)))
        self.assertEqual(result.returncode, 6, result.stderr)
        self.assertIn(b"E-IO-NOSPACE", result.stderr)
        self.assertIn(b"raise the limit of file sizes (ulimit -f) and run the same command to resume", result.stderr)
        part = (self.folder / "out.jsonl.part").read_bytes()
        self.assertTrue(part.endswith(b"\n"))
        kept = part.count(b"\n")
        self.assertGreater(kept, 0)
        result = self.run_job()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.summary()["requests"]["resumed"], kept)
        reference = self.run_job(output="reference.jsonl")
        self.assertEqual(reference.returncode, 0)
        self.assertEqual(self.output.read_bytes(), (self.folder / "reference.jsonl").read_bytes())

    def test_full_disk_while_the_output_is_put_together(self):
        # Enough for OUT.part, not for anything after it.
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        process = subprocess.Popen(self.command(prompts="pipe"), cwd=self.folder, stderr=subprocess.PIPE)
        part = self.folder / "out.jsonl.part"
        with open(pipe, "w", encoding="utf-8") as file:
            file.write(lines(200))
            file.flush()
            deadline = time.monotonic() + 60
            while not (part.exists() and part.read_bytes().count(b"\n") == 200):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            kept = part.read_bytes()
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (len(kept) // 2, len(kept) // 2))
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 6, errors)
        self.assertIn(b"E-IO-NOSPACE", errors)
        self.assertEqual(part.read_bytes(), kept)
        self.assertEqual(sorted(path.name for path in self.folder.glob("out.jsonl*")),
                         ["out.jsonl.manifest.json", "out.jsonl.part", "out.jsonl.summary.json"])

    def test_stdin_and_pipes(self):
        result = self.run_job(prompts="-", input=lines(5).encode())
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(self.records()), 5)
        again = self.run_job(prompts="-", input=lines(5).encode())
        self.assertEqual(again.returncode, 4)
        self.assertIn(b"cannot be compared", again.stderr)
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        process = subprocess.Popen(self.command(prompts="pipe", output="two.jsonl"), cwd=self.folder,
                                   stderr=subprocess.PIPE)
        pipe.write_text(lines(3))
        _, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, errors)
        self.assertEqual(len((self.folder / "two.jsonl").read_text().splitlines()), 3)

    def test_records_of_a_slow_pipe_do_not_wait_for_the_next_line(self):
        process = subprocess.Popen(self.command(prompts="-"), cwd=self.folder, stdin=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        process.stdin.write(lines(1).encode())
        process.stdin.flush()
        part = self.folder / "out.jsonl.part"
        deadline = time.monotonic() + 300
        while not (part.exists() and part.stat().st_size > 0):
            self.assertLess(time.monotonic(), deadline, "no record while the pipe is open")
            time.sleep(0.01)
        _, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, errors)

    def test_a_log_that_cannot_be_written_is_said_once(self):
        done = self.run_job("--log-file", "/dev/full", text=lines(5))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(done.stderr.count(b"\n"), 3)
        self.assertEqual(done.stderr.count(b"--log-file"), 1, done.stderr)

    def test_what_the_longest_request_may_be_belongs_to_the_job(self):
        job = ("--truncate=left", "--max-context=40")
        self.assertEqual(self.run_job(*job, text=lines(5)).returncode, 0)
        before = self.output.read_bytes()
        self.assertEqual(self.run_job(*job).returncode, 0)
        for other in ("--max-context=30", "--max-context=0"):
            changed = self.run_job("--truncate=left", other)
            self.assertEqual(changed.returncode, 4)
            self.assertIn(b"max_context: 40 there", changed.stderr)
            self.assertEqual(self.output.read_bytes(), before)
        more = self.run_job("--max-context=100000", "--overwrite", "--dry-run")
        self.assertIn(b"--max-context 100000 is more than the model's 64 tokens", more.stderr)

    def test_complete_output_again_and_changed_input(self):
        self.assertEqual(self.run_job(text=lines(5)).returncode, 0)
        before = self.output.read_bytes()
        (self.folder / "out.jsonl.summary.json").unlink()
        again = self.run_job()
        self.assertEqual(again.returncode, 0)
        self.assertIn(b"already complete", again.stderr)
        self.assertTrue(self.summary()["complete"])
        changed = self.run_job(text=lines(6))
        self.assertEqual(changed.returncode, 4)
        self.assertIn(b"input hash", changed.stderr)
        self.assertEqual(self.output.read_bytes(), before)
        self.assertEqual(self.run_job("--overwrite").returncode, 0)
        self.assertEqual(len(self.records()), 6)

    def test_shards_and_merge_equal_one_run(self):
        self.assertEqual(self.run_job(text=lines(30) + "\n{\n" + lines(1)).returncode, 1)
        shards = []
        for shard in range(3):
            result = self.run_job("--shard", f"{shard}/3", output=f"s{shard}.jsonl")
            self.assertIn(result.returncode, (0, 1), result.stderr)
            self.assertIn(f"shard {shard}/3".encode(), result.stderr)
            shards.append(f"s{shard}.jsonl")
        merged = subprocess.run([PROGRAM, "merge", *shards, "--output", "merged.jsonl"],
                                cwd=self.folder, capture_output=True, check=False)
        self.assertEqual(merged.returncode, 1, merged.stderr)
        self.assertEqual((self.folder / "merged.jsonl").read_bytes(), self.output.read_bytes())
        lacking = subprocess.run([PROGRAM, "merge", *shards[:2], "--output", "lacking.jsonl"],
                                 cwd=self.folder, capture_output=True, check=False)
        self.assertEqual(lacking.returncode, 4)
        self.assertIn(b"missing 2", lacking.stderr)
        self.assertFalse((self.folder / "lacking.jsonl").exists())

    def test_slurm_arrays_name_the_shard(self):
        environment = {**os.environ, "SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "5",
                       "SLURM_ARRAY_TASK_STEP": "2", "SLURM_ARRAY_TASK_COUNT": "4"}
        result = self.run_job(text=lines(8), env=environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(b"warning: shard 1/4 (from SLURM_ARRAY_TASK_ID)", result.stderr)
        self.assertIn(b"out.jsonl: shard 1/4, 2 records", result.stderr)
        self.assertEqual([record["index"] for record in self.records()], [1, 5])

    def test_explain_shows_where_values_come_from(self):
        (self.folder / "config").write_text("top-k = 7\n", encoding="utf-8")
        result = self.run_job("--explain", "--dry-run", "--seed=3", "--config", "config", text=lines(1),
                              env={**os.environ, "TRIPHASE_MAX_TOKENS": "5"})
        self.assertEqual(result.returncode, 0, result.stderr)
        for text in (b"--seed = 3 (command line)", b"--max-tokens = 5 (environment TRIPHASE_MAX_TOKENS)",
                     b"--top-k = 7 (config file config)", b"--order = input (default)"):
            self.assertIn(text, result.stderr)
        self.assertFalse(self.output.exists())

    def test_json_messages(self):
        result = self.run_job("--log-format=json", "--progress=json", text=lines(3))
        for line in result.stderr.splitlines():
            json.loads(line)
        failed = self.run_job("--log-format=json", "--seed=x")
        self.assertEqual(failed.returncode, 2)
        error = json.loads(failed.stderr)
        self.assertEqual((error["level"], error["code"]), ("error", "E-CLI-OPTION"))

    def test_stdout_closed_early(self):
        read, write = os.pipe()
        os.close(read)
        for arguments in (["run", "--help"], ["doctor"], ["inspect", "--model", "model"]):
            result = subprocess.run([PROGRAM, *arguments], cwd=self.folder, stdout=write,
                                    stderr=subprocess.PIPE, check=False)
            self.assertEqual((result.returncode, result.stderr), (0, b""), arguments)
        os.close(write)

    def test_progress_on_a_terminal_is_one_line_that_goes_away(self):
        (self.folder / "in.jsonl").write_text(lines(500, LONG), encoding="utf-8")
        terminal, other_end = pty.openpty()
        process = subprocess.Popen(self.command("--ignore-eos"), cwd=self.folder, stderr=other_end,
                                   env={**os.environ, "TERM": "xterm"})
        os.close(other_end)
        shown = b""
        try:
            while piece := os.read(terminal, 65536):
                shown += piece
        except OSError:  # how Linux says that the other end is closed
            pass
        os.close(terminal)
        self.assertEqual(process.wait(timeout=300), 0)
        self.assertIn(b"\r\x1b[Kgenerating", shown)
        last_line = shown.rstrip().split(b"\n")[-1]
        self.assertIn(b"out.jsonl: 500 records, 0 failed", last_line)

    def test_private_files(self):
        self.assertEqual(self.run_job("--private", text=lines(1)).returncode, 0)
        for path in self.folder.glob("out.jsonl*"):
            self.assertEqual(path.stat().st_mode & 0o077, 0, path)

    def test_a_part_that_was_not_private_becomes_so(self):
        part = self.folder / "out.jsonl.part"
        part.touch(mode=0o644)
        part.chmod(0o644)
        self.assertEqual(self.run_job("--private", text=lines(1)).returncode, 0)
        self.assertEqual(self.output.stat().st_mode & 0o077, 0)

    def test_bare_run_says_how_to_try_it(self):
        result = subprocess.run([PROGRAM, "run"], capture_output=True, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn(b"--model models/shipped/triphase-mha", result.stderr)
        helped = [subprocess.run([PROGRAM, *words], capture_output=True, check=True).stdout
                  for words in (("help", "run"), ("run", "--help"))]
        self.assertEqual(helped[0], helped[1])
        bare = subprocess.run([PROGRAM], capture_output=True, check=False)
        self.assertEqual((bare.returncode, bare.stdout), (2, b""))

    def test_named_options_are_listed_before_anything_else_is_checked(self):
        def asked(*words, code=0):
            result = subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, code, result.stderr)
            return result.stdout + result.stderr

        sparq = asked("run", "--attention-option", "sparq=help")
        self.assertRegex(sparq, r"\n  sparq\.rank +Channels .*\[channels, at least\s+1; default 32\]")
        self.assertEqual(sparq, asked("score", "--attention-option=sparq.rank=help"))
        self.assertNotIn("quest", sparq)
        everything = asked("eval", "--attention-option", "help")
        self.assertIn(sparq, everything)
        self.assertIn("quest.page", everything)
        self.assertEqual(everything, asked("compare", "--attention", "help"))
        self.assertIn("Options of --attention dense: none", everything)
        # Every option has its sentence.
        for text in (everything, asked("run", "--policy-option", "help")):
            for line in re.findall(r"\n  (\S.*)", text):
                self.assertRegex(line, r"^[\w.-]+ +\w+ ")
        self.assertEqual(asked("run", "--policy=help"), asked("simulate", "--policies", "help"))
        flexgen = asked("compare", "--policy-option", "flexgen=help")
        self.assertIn("compare, simulate: flexgen.NAME=VALUE", flexgen)
        self.assertRegex(flexgen, r"host-kv .*\[stream or\s+cpu-attention; default stream\]")
        self.assertIn("one of dense", asked("run", "--attention-option", "sparc=help", code=2))
        asked("run", "--", "--attention-option", "sparq=help", code=2)

    def test_doctor_and_inspect_as_json(self):
        checks = json.loads(subprocess.run([PROGRAM, "doctor", "--format=json"], capture_output=True,
                                           check=True).stdout)
        self.assertTrue({"memory", "output directory", "CUDA"} <= {check["check"] for check in checks})
        model = json.loads(subprocess.run([PROGRAM, "inspect", "--model", "model", "--format=json"],
                                          cwd=self.folder, capture_output=True, check=True).stdout)
        self.assertEqual((model["layers"], model["kv_bytes_per_token"]["fp32"]), (2, 2 * 2 * 8 * 4))


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
