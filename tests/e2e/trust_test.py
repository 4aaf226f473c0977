#!/usr/bin/env python3
"""What is published is right, and nothing a command reads is destroyed by it.

    trust_test.py TRIPHASE          (unittest options may follow)

Standard library only; the model is the tiny one of the hostile corpus, prompts are token ids.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import stat
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


def line(number, tokens, max_tokens=2, padding=0):
    return json.dumps({"id": f"n{number}", "prompt_tokens": tokens, "max_tokens": max_tokens}) + " " * padding + "\n"


def lines(count, max_tokens=2, padding=0):
    return "".join(line(n, [3 + n % 20, 4], max_tokens, padding) for n in range(count))


class TrustTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="triphase-trust-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        ModelFolder(self.folder / "model").llama()
        self.output = self.folder / "out.jsonl"
        self.part = self.folder / "out.jsonl.part"
        self.prompts = self.folder / "in.jsonl"

    def command(self, *extra, prompts="in.jsonl", output="out.jsonl"):
        return [PROGRAM, "run", "--model", "model", "--prompts", prompts, "--output", output, "--ignore-eos", *extra]

    def triphase(self, *arguments, code=0, **options):
        result = subprocess.run([PROGRAM, *arguments], cwd=self.folder, capture_output=True, check=False, timeout=120,
                                **options)
        self.assertEqual(result.returncode, code, (arguments, result.stderr.decode()))
        return result.stderr.decode()

    def run_job(self, *extra, code=0, prompts="in.jsonl", output="out.jsonl", **options):
        return self.triphase(*self.command(*extra, prompts=prompts, output=output)[1:], code=code, **options)

    def start(self, *extra, **options):
        process = subprocess.Popen(self.command(*extra, **options), cwd=self.folder, stderr=subprocess.PIPE)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def wait_for(self, happened):
        deadline = time.monotonic() + 60
        while not happened():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.005)

    def wait_for_records(self, process, count=1):
        def there():
            self.assertIsNone(process.poll(), "it ended by itself")
            return self.part.exists() and self.part.read_bytes().count(b"\n") >= count
        self.wait_for(there)

    def kill_after(self, records, *extra):
        """A job that was killed with at least so many records in OUT.part."""
        process = self.start("--batch-size=1", *extra)
        self.wait_for_records(process, records)
        process.kill()
        process.wait()
        self.assertFalse(self.output.exists())

    def reference(self):
        self.run_job(output="reference.jsonl")
        return (self.folder / "reference.jsonl").read_bytes()

    # 1a: descriptors 0 to 2

    def test_closed_descriptors_are_not_given_to_files(self):
        self.prompts.write_text(lines(50))
        expected = self.reference()
        for closed in ("2>&-", ">&-", "<&-", "<&- >&- 2>&-"):
            with self.subTest(closed):
                script = f'exec "$@" {closed}'
                result = subprocess.run(["sh", "-c", script, "sh", *self.command("--overwrite", "-v")], cwd=self.folder,
                                        check=False, timeout=120, stderr=subprocess.DEVNULL)
                self.assertEqual(result.returncode, 0)
                self.assertEqual(self.output.read_bytes(), expected)
        # A closed standard output stays one.
        result = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", PROGRAM, "inspect", "--model", "model"],
                                cwd=self.folder, check=False, capture_output=True)
        self.assertEqual(result.returncode, 6)

    # 1b: foreign bytes

    def test_a_foreign_line_in_the_part_file_ends_the_run_and_is_cut_on_resume(self):
        self.prompts.write_text(lines(600, LONG))
        process = self.start("--batch-size=4")
        self.wait_for_records(process, 3)
        with open(self.part, "ab") as part:
            part.write(b"x\n")
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 4, errors)
        self.assertIn(b"E-IN-PART", errors)
        self.assertFalse(self.output.exists())
        self.run_job("--batch-size=64")
        self.assertEqual(self.output.read_bytes(), self.reference())

    def test_two_runs_without_a_lock(self):
        self.prompts.write_text(lines(20_000, LONG))
        first = self.start("--no-lock", "--batch-size=4")
        self.wait_for_records(first, 3)
        second = self.start("--no-lock", "--batch-size=4")
        self.wait_for(lambda: first.poll() is not None or second.poll() is not None)
        ended = first if first.poll() is not None else second
        self.assertEqual(ended.returncode, 4)
        self.assertRegex(ended.stderr.read(), rb"E-IN-(PART|RESUME)")
        self.assertFalse(self.output.exists())

    def test_bytes_changed_in_place_are_found_at_the_end(self):
        os.mkfifo(self.folder / "pipe")
        process = self.start(prompts="pipe")
        with open(self.folder / "pipe", "w", encoding="utf-8") as pipe:
            pipe.write(lines(20))
            pipe.flush()
            self.wait_for_records(process, 20)
            with open(self.part, "r+b") as part:
                part.seek(40)
                byte = part.read(1)
                part.seek(40)
                part.write(bytes([byte[0] ^ 1]))
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 4, errors)
        self.assertIn(b"E-IN-PART", errors)
        self.assertFalse(self.output.exists())

    def test_records_that_are_not_ours_are_not_resumed(self):
        self.prompts.write_text("\n" + lines(600, LONG))
        self.kill_after(5)
        part = self.part.read_bytes()
        part = part[:part.rindex(b"\n") + 1]
        first = part[:part.index(b"\n") + 1]
        record = json.loads(first)
        usage = {"prompt_tokens": 2, "completion_tokens": 1}
        answer = {"tokens": [1], "finish_reason": "length", "usage": usage}

        def text(**fields):
            return json.dumps(fields).encode() + b"\n"

        damages = {
            "a record of the blank line": text(index=0, **answer),
            "a record without a check": text(id="n598", index=599, **answer),
            "tokens that are none": text(index=599, tokens=0),
            "another id": first.replace(b'"id":"n0"', b'"id":"n9"'),
            "another index": first.replace(b'"index":1,', b'"index":599,'),
            "other tokens": first.replace(b'"tokens":[%d' % record["tokens"][0], b'"tokens":[%d' % 1),
            "a byte order mark": b"\xef\xbb\xbf" + first,
        }
        for what, bad in damages.items():
            with self.subTest(what):
                replaced = bad + part[len(first):] if bad[-20:] == first[-20:] else first + bad + part[len(first):]
                self.assertNotEqual(replaced, part)
                self.part.write_bytes(replaced)
                self.assertIn("E-IN-RESUME", self.run_job(code=4))
                self.assertEqual(self.part.read_bytes(), replaced)
        # NUL bytes are a hole that a power cut left: the line is done again.
        self.part.write_bytes(b"\0" * 600 + part)
        self.run_job()
        self.assertEqual(self.output.read_bytes(), self.reference())

    def test_a_damaged_output_is_not_already_complete(self):
        self.prompts.write_text(lines(4) + "\n" + lines(1))
        self.run_job("--allow-duplicate-ids")
        whole = self.output.read_text().splitlines(keepends=True)
        damages = {
            "doubled": [whole[0], whole[0], *whole[2:]],
            "missing": whole[:-1],
            "of a blank line": [*whole[:-1], whole[-1].replace('"index":5', '"index":4')],
            "of no line": [*whole[:-1], whole[-1].replace('"index":5', '"index":6')],
            "out of order": [whole[1], whole[0], *whole[2:]],
            "no answer": [re.sub(r'"tokens":\[[^]]*\]', '"tokens":0', whole[0]), *whole[1:]],
        }
        for what, text in damages.items():
            with self.subTest(what):
                self.output.write_text("".join(text))
                self.assertIn("E-IN-RESUME", self.run_job("--allow-duplicate-ids", code=4))
        self.output.write_text("".join(whole))
        self.assertIn("already complete", self.run_job("--allow-duplicate-ids"))

    # 1c: prompts that change

    def test_changed_prompts_make_no_records(self):
        text = lines(200, LONG, padding=100_000)
        self.prompts.write_text(text)
        expected = self.reference()
        process = self.start("--batch-size=1")
        self.wait_for_records(process)
        process.send_signal(signal.SIGSTOP)
        # The second half, far behind the first MiB, which is read already.
        half = len(text) // 2
        self.prompts.write_text(text[:half] + text[half:].replace("_tokens\": [", "_tokens\": [1"))
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 6, errors)
        self.assertRegex(errors, rb"in\.jsonl:1\d\d: .*E-IO-CHANGED")
        self.assertFalse(self.output.exists())
        self.assertIn("input hash", self.run_job(code=4))
        self.prompts.write_text(text)
        self.run_job()
        self.assertEqual(self.output.read_bytes(), expected)

    # 1d: everything that shapes an answer

    def test_int8_blocks_must_not_change(self):
        self.prompts.write_text(lines(600, LONG))
        self.kill_after(2, "--kv-dtype=int8")
        message = self.run_job("--kv-dtype=int8", "--kv-block=32", code=4)
        self.assertIn("kv-dtype: int8 in blocks of 64 tokens there, int8 in blocks of 32 tokens now", message)
        self.run_job("--kv-dtype=int8", "--policy=vllm")

    def test_what_shapes_an_answer_must_not_change(self):
        (self.folder / "model" / "generation_config.json").write_text('{"eos_token_id": 2}')
        self.prompts.write_text(lines(600, LONG))
        self.kill_after(2)
        part = self.part.read_bytes()
        part = part[:part.rindex(b"\n") + 1]
        self.part.write_bytes(part)

        def refused(field, **options):
            self.assertRegex(self.run_job(code=4, **options), rf"{field}: .* there, .* now.*E-IN-MANIFEST")
            self.assertEqual(self.part.read_bytes(), part)

        (self.folder / "model" / "generation_config.json").write_text('{"eos_token_id": 3}')
        refused(r"generation_config\.json")
        (self.folder / "model" / "generation_config.json").unlink()
        refused(r"generation_config\.json")
        (self.folder / "model" / "generation_config.json").write_text('{"eos_token_id": 2}')

        refused("kernels", env={**os.environ, "TRIPHASE_SIMD": "scalar"})

        weights = self.folder / "model" / "model.safetensors"
        kept = weights.read_bytes()
        weights.write_bytes(kept[:-4] + kept[-8:-4])
        refused("weights")
        weights.write_bytes(kept)

        manifest = self.folder / "out.jsonl.manifest.json"
        kept = manifest.read_text()
        manifest.write_text(re.sub(r'"commit": "[^"]*"', '"commit": "another"', kept))
        refused("build")
        manifest.write_text(kept)
        self.run_job()
        self.assertEqual(self.output.read_bytes(), self.reference())

    # 2: inputs that survive

    def refused_output(self, *arguments, **options):
        self.assertIn("E-CLI-OUTPUT", self.triphase(*arguments, code=2, **options), arguments)

    def test_no_command_replaces_special_files(self):
        self.prompts.write_text(lines(3))
        (self.folder / "text.txt").write_text("a text\n")
        target = self.folder / "target"
        target.write_text("precious")
        os.symlink("target", self.folder / "link")
        os.symlink("nothing", self.folder / "dangling")
        os.mkfifo(self.folder / "fifo")
        os.symlink("/proc/self/fd/1", self.folder / "stdout")
        (self.folder / "directory").mkdir()
        places = ["link", "dangling", "fifo", "stdout", "directory"]
        # Never one of the machine's own: a version that replaces devices would do so here.
        try:
            os.mknod(self.folder / "device", stat.S_IFCHR | 0o666, os.makedev(1, 7))
            places.append("device")
        except PermissionError:
            pass  # only root makes devices, and replaces them
        before = {place: os.lstat(self.folder / place) for place in places}
        commands = (
            ("plan", "--model", "model", "--input-len=8", "--output-len=8", "--output"),
            ("profile", "--model", "model", "--time=1s", "--output"),
            ("run", "--model", "model", "--prompts", "in.jsonl", "--output"),
            ("run", "--model", "model", "--prompts", "in.jsonl", "--output=o.jsonl", "--trace"),
        )
        for command in commands:
            for place in places:
                with self.subTest(command=command[0], option=command[-1], place=place):
                    self.refused_output(*command, place)
        self.assertEqual(target.read_text(), "precious")
        self.assertEqual({place: os.lstat(self.folder / place).st_ino for place in places},
                         {place: status.st_ino for place, status in before.items()})
        self.assertFalse((self.folder / "o.jsonl.part").exists())

    def test_no_output_is_an_input(self):
        self.prompts.write_text(lines(3))
        (self.folder / "empty.jsonl").write_text("")
        (self.folder / "options").write_text("top-k = 3\n")
        shutil.copytree(self.folder / "model", self.folder / "hub")
        for path in (self.folder / "hub").iterdir():  # as in the Hub's cache
            path.rename(self.folder / f"blob-{path.name}")
            path.symlink_to(self.folder / f"blob-{path.name}")
        os.link(self.prompts, self.folder / "hard")
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        before = {path: path.read_bytes() for path in files}
        job = ("run", "--model", "model", "--prompts", "in.jsonl")
        for option in ("--log-file", "--trace"):
            for place in ("in.jsonl", "hard", "model/config.json", "model/model.safetensors", "options"):
                self.refused_output(*job, "--config=options", "--output=o.jsonl", option, place)
            self.refused_output("run", "--model", "hub", "--prompts", "in.jsonl", "--output=o.jsonl", option,
                                "blob-model.safetensors")
            self.refused_output("run", "--model", "model", "--prompts", "empty.jsonl", "--output=o.jsonl", option,
                                "empty.jsonl")
        for place in ("in.jsonl", "hard", "model/config.json", "model/model.safetensors"):
            self.refused_output(*job, "--overwrite", "--output", place)
        for place in ("model/config.json", "model/model.safetensors"):
            self.refused_output("plan", "--model", "model", "--log-file", place)
        self.refused_output("inspect", "--model", "model", "--log-file=model/config.json")
        # A directory of outputs that holds an input.
        (self.folder / "results").mkdir()
        data = self.folder / "results" / "eval.csv"
        data.write_text("data\n")
        self.refused_output("eval", "--model", "model", "--task=perplexity", "--data", "results/eval.csv", "--output",
                            "results")
        self.assertEqual(data.read_text(), "data\n")
        self.assertEqual({path: path.read_bytes() for path in files}, before)
        self.assertFalse((self.folder / "o.jsonl").exists())
        self.assertFalse((self.folder / "o.jsonl.part").exists())

    def test_no_output_is_another_output(self):
        self.prompts.write_text(lines(3))
        for option in ("--log-file", "--trace"):
            for place in ("out.jsonl", "./out.jsonl.part", "out.jsonl.manifest.json", "out.jsonl.summary.json"):
                self.assertIn("E-CLI-OUTPUT", self.run_job(option, place, code=2))
        self.assertIn("E-CLI-OUTPUT", self.run_job("--trace=t", "--log-file=./t", code=2))
        with open(self.output, "wb") as stdout:
            result = subprocess.run(self.command("--overwrite"), cwd=self.folder, stdout=stdout,
                                    stderr=subprocess.PIPE, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn(b"standard output", result.stderr)

    def test_a_log_may_be_a_stream(self):
        self.prompts.write_text(lines(3))
        result = subprocess.run(self.command("--log-file=/dev/stdout"), cwd=self.folder, capture_output=True,
                                check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(b"3 records, 0 failed", result.stdout)
        os.mkfifo(self.folder / "fifo")
        with subprocess.Popen(["cat", "fifo"], cwd=self.folder, stdout=subprocess.PIPE) as reader:
            self.run_job("--overwrite", "--log-file=fifo")
            self.assertIn(b"3 records, 0 failed", reader.communicate(timeout=60)[0])
        self.run_job("--overwrite", "--log-file=/dev/null")
        os.symlink("in.jsonl", self.folder / "link")
        self.assertIn("a link", self.run_job("--overwrite", "--log-file=link", code=2))
        self.assertEqual(self.prompts.read_text(), lines(3))

    def test_a_signal_leaves_nothing_of_a_job_that_prints_its_records(self):
        os.mkfifo(self.folder / "fifo")
        scratch = self.folder / "scratch"
        scratch.mkdir()
        process = subprocess.Popen(self.command(prompts="fifo", output="-"), cwd=self.folder, stderr=subprocess.DEVNULL,
                                   env={**os.environ, "TMPDIR": str(scratch)})
        self.addCleanup(process.kill)
        self.wait_for(lambda: list(scratch.glob("*/out.jsonl.manifest.json")))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60), -signal.SIGTERM)
        self.assertEqual(list(scratch.iterdir()), [])

    def test_merge_keeps_the_manifests_of_its_shards(self):
        self.prompts.write_text(lines(6))
        shards = []
        for shard in range(2):
            self.run_job("--shard", f"{shard}/2", output=f"s{shard}")
            shards.append(f"s{shard}")
        manifest = self.folder / "s1.manifest.json"
        before = manifest.read_bytes()
        for arguments in (("--output", "s1.manifest.json"), ("--output", "s0"), ("--output", "m", "--log-file", "s0"),
                          ("--output", "m", "--log-file", "s1.manifest.json")):
            self.refused_output("merge", *shards, *arguments, "--overwrite")
        self.assertEqual(manifest.read_bytes(), before)
        self.triphase("merge", *shards, "--output", "m")

    def test_a_prompt_file_with_the_name_of_a_temporary_file_survives(self):
        for name in ("out.jsonl.manifest.json.tmp", "out.jsonl.tmp", "out.jsonl.summary.json.tmp"):
            (self.folder / name).write_text(lines(4))
            self.run_job("--overwrite", prompts=name)
            self.assertEqual((self.folder / name).read_text(), lines(4))
        # What a killed run leaves goes with the next one; what only looks like it stays.
        (self.folder / "out.jsonl.0123456789abcdef.tmp").write_text("left over")
        others = [self.folder / name for name in ("out.jsonl.0123456789abcdeX.tmp", "ut.jsonl.0123456789abcdef.tmp",
                                                  "out.jsonl2.0123456789abcdef.tmp")]
        for path in others:
            path.write_text("another's")
        self.run_job("--overwrite", prompts="out.jsonl.tmp")
        self.assertFalse((self.folder / "out.jsonl.0123456789abcdef.tmp").exists())
        self.assertTrue(all(path.exists() for path in others))

    def test_overwrite_keeps_the_output_until_the_new_job_can_start(self):
        self.prompts.write_text(lines(4))
        self.run_job()
        before = {path: path.read_bytes() for path in self.folder.glob("out.jsonl*")}
        weights = self.folder / "model" / "model.safetensors"
        kept = weights.read_bytes()
        weights.write_bytes(kept[:-4] + b"\x00\x00\xc0\x7f")  # a NaN, found while loading
        self.assertIn("E-ST-NONFINITE", self.run_job("--overwrite", code=3))
        self.assertEqual({path: path.read_bytes() for path in self.folder.glob("out.jsonl*")}, before)
        weights.write_bytes(kept)
        self.prompts.write_text(lines(5))
        self.run_job("--overwrite")
        self.assertEqual(self.output.read_bytes().count(b"\n"), 5)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
