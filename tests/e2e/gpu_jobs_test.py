#!/usr/bin/env python3
"""Jobs on a GPU: every policy and method, the same answers wherever KV lies, whatever order work runs in.

    gpu_jobs_test.py TRIPHASE_EMULATED TRIPHASE             what ctest runs (unittest options may follow)
    gpu_jobs_test.py TRIPHASE TRIPHASE --device cuda:0      on a real GPU: no orders, no failures on demand

Standard library only. gpu_jobs.py has the jobs, gpu_matrix.py runs every combination, gpu_steps_test.py counts what a
step asks of the device.
"""

import collections
import itertools
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True

from gpu_jobs import (  # noqa: E402
    Answers, ARGUMENTS, config, DEVICE, difference, experts, IS_EMULATED, JOB_SECONDS, Jobs, LENGTHS, LONGEST, METHODS,
    ON_CPU, options, OTHERS, POLICIES, RECOMPUTE, ROOT, TIGHT, windowed,
)


class GpuJobs(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.jobs = Jobs(scratch.name)

    def check(self, answers, expected):
        self.assertIn(Answers.compare(answers, expected), ("same",) if IS_EMULATED else ("same", "close"))

    def test_policies_give_the_same_answers_in_any_order(self):
        _, expected = self.jobs.run("reference", "--policy", "device-only")
        for number, (name, policy) in enumerate(POLICIES.items()):
            with self.subTest(policy=name):
                summary, answers = self.jobs.run("job", *policy, "--overwrite", machine=f"schedule={number % 3 * 5}")
                self.check(answers, expected)
                if name in ("triphase", "flexgen", *ON_CPU):
                    self.assertGreater(summary["moved_bytes"]["to_device"], 0)
                    self.assertGreater(summary["moved_bytes"]["to_host"], 0)
        # Where work elsewhere comes first: what a missing event would show.
        _, answers = self.jobs.run("job", *POLICIES["triphase"], "--overwrite", machine="schedule=1")
        self.check(answers, expected)

    def test_preempted_requests_are_swapped_and_go_on(self):
        _, expected = self.jobs.run("reference", "--policy", "device-only", tokens=60)
        summary, answers = self.jobs.run("job", *POLICIES["vllm"], tokens=60, machine="schedule=9")
        self.check(answers, expected)
        self.assertGreater(summary["moved_bytes"]["to_device_by_kind"]["kv_reloads"], 0)

    def test_methods_choose_the_same_tokens_wherever_kv_lies(self):
        self.jobs.write_prompts("fewer", LENGTHS[:4])
        for number, method in enumerate(METHODS):
            attention = (*self.jobs.attention(method), "--overwrite")
            policy = list(POLICIES["triphase"])
            if method == "sparq":
                policy[policy.index("260KiB")] = "900KiB"  # K^T
            if method.startswith("squeezed"):
                policy[policy.index("260KiB")] = "360KiB"  # the context too
            with self.subTest(method=method):
                job = {"prompts": "fewer", "tokens": 16}
                alone, expected = self.jobs.run("reference", "--policy", "device-only", *attention, **job)
                summary, answers = self.jobs.run("job", *policy, *attention, machine=f"schedule={number % 4}", **job)
                self.check(answers, expected)
                if IS_EMULATED:
                    self.assertEqual(summary["attention"], alone["attention"])
                self.assertLess(summary["attention"]["tokens_attended_fraction"], 0.9)
                self.assertGreater(summary["moved_bytes"]["to_device"], 0)
                for part in summary["memory"]:
                    self.assertLessEqual(part["peak_bytes"], part["planned_bytes"], part)

    @unittest.skipUnless(IS_EMULATED, "a real GPU has the memory that it has")
    def test_clusters_and_lists_as_long_as_contexts_are_in_the_budget(self):
        for method, kv in (("squeezed", ()), ("squeezed.levels=2", ("--kv-dtype", "int8", "--kv-block", "32"))):
            with self.subTest(method=method):
                job = (*self.jobs.attention(method), *kv, "--max-context", LONGEST, "--overwrite")
                alone, expected = self.jobs.run("reference", "--policy", "device-only", *job, tokens=16)
                policy = POLICIES["flexgen"]
                errors, _ = self.jobs.run("small", *policy, *job, "--device-memory", "1MiB", ending=5)
                one = int(re.search(r"--device-memory (\d+)B would fit batch 1", errors).group(1))
                # So much more that the batch fits; the device has no byte beside it.
                room = one + (600 << 10)
                summary, answers = self.jobs.run("job", *policy, *job, "--device-memory", f"{room}B", tokens=16,
                                                 machine=f"schedule=3,memory={room}")
                self.check(answers, expected)
                self.assertEqual(summary["attention"], alone["attention"])
                self.assertGreater(summary["moved_bytes"]["to_device_by_kind"]["kv_tokens"], 0)
                for part in summary["memory"]:
                    self.assertLessEqual(part["peak_bytes"], part["planned_bytes"], part)

    def test_int8_kv(self):
        int8 = ("--kv-dtype", "int8", "--kv-block", "32")
        _, expected = self.jobs.run("reference", "--policy", "device-only", *int8)
        policy = list(POLICIES["triphase"])
        policy[policy.index("260KiB")] = "600KiB"  # partial blocks lie unquantized on the device
        summary, answers = self.jobs.run("job", *policy, *int8, machine="schedule=3")
        self.check(answers, expected)
        self.assertGreater(summary["moved_bytes"]["to_device"], 0)

    def test_recomputed_kv_is_the_kv_that_was_stored(self):
        # A GPU computes it again by other products, in another order.
        logprobs = ("--logprobs", "2") if IS_EMULATED else ()
        _, expected = self.jobs.run("reference", "--policy", "device-only", "--cached-hidden-states", "96", *logprobs,
                                    tokens=60)
        summary, answers = self.jobs.run("job", "--policy", "triphase", *RECOMPUTE, *TIGHT, "--kv-dtype", "bf16",
                                         *logprobs, tokens=60, machine="schedule=6")
        self.assertIn(Answers.compare(answers, expected, exact=False), ("same", "close"))
        self.assertGreater(summary["cached_hidden_states"]["recomputed_tokens"], 0)

    def test_tokens_that_the_device_names_are_recomputed(self):
        """Under methods with one list of tokens for all heads."""
        self.jobs.write_prompts("alike", (70, 75, 100, 66, 90), lines_differ=False)  # their first blocks are shared
        policy = ["--policy", "triphase", *RECOMPUTE, *TIGHT, "--overwrite"]
        # Room for KV: so little that blocks are recomputed, and enough for requests side by side.
        cases = (("swa", "bf16", "0B", "600KiB", "prompts"), ("swa", "int8", "60KiB", "840KiB", "prompts"),
                 ("strided", "fp16", "60KiB", "450KiB", "alike"))  # fmt: skip
        for number, (method, kv, cache, room, prompts) in enumerate(cases):
            policy[policy.index("--device-kv-memory") + 1] = room
            options = ["--attention", method, "--kv-sparsity", "0.6", "--kv-dtype", kv, "--kv-block", "32"]
            job = {"tokens": 30, "batch": 6, "prompts": prompts}
            with self.subTest(method=method, kv=kv):
                _, expected = self.jobs.run("reference", "--policy", "device-only", "--cached-hidden-states", "96",
                                            "--overwrite", *options, **job)  # fmt: skip
                command = (*policy, *options, "--token-cache", cache)
                summary, answers = self.jobs.run("job", *command, **job, machine=f"schedule={number % 4}")
                self.check(answers, expected)
                recomputed = summary["cached_hidden_states"]["recomputed_tokens"]
                self.assertGreater(recomputed, 0)
                self.assertGreater(summary["moved_bytes"]["to_device_by_kind"]["cached_hidden_states"], 0)
                self.assertEqual(summary["token_cache"]["found_bytes"] > 0, cache != "0B")
                for part in summary["memory"]:
                    self.assertLessEqual(part["peak_bytes"], part["planned_bytes"], part)
                if number > 0 or not IS_EMULATED:
                    continue
                # Without pinned memory blocks come, and are recomputed, as a whole.
                summary, answers = self.jobs.run("job", *command, **job, machine="fail-pin=1")
                self.check(answers, expected)
                self.assertGreater(summary["cached_hidden_states"]["recomputed_tokens"], recomputed)

    def test_answers_are_the_cpus_but_for_close_calls(self):
        models = [(name, kv) for name, kv in (("triphase-gqa", "bf16"), ("triphase-mha", "int8"), ("triphase-gqa", "int8"))
                  if (ARGUMENTS.models / name).is_dir()]  # fmt: skip
        if not models:
            self.skipTest(f"no models in {ARGUMENTS.models}")
        lines = [json.loads(line) for line in (ARGUMENTS.models / "prompts.jsonl").read_text().splitlines()[:4]]
        prompts = self.jobs.folder / "stories.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": line["prompt"]}) + "\n" for line in lines))
        for model, kv in models[:2]:
            answers = {}
            for device in ("cpu", DEVICE):
                output = self.jobs.folder / f"{device}-{kv}.jsonl"
                done = subprocess.run([ARGUMENTS.program, "run", "--model", str(ARGUMENTS.models / model), "--prompts",
                                       str(prompts), "--max-tokens", "16" if IS_EMULATED else "96", "--temperature", "0",
                                       "--logprobs", "2", "--kv-dtype", kv, "--policy", "device-only", "--device",
                                       device, "--output", str(output)],
                                      capture_output=True, text=True, timeout=JOB_SECONDS, check=False)  # fmt: skip
                self.assertEqual(done.returncode, 0, done.stderr)
                answers[device] = [json.loads(line) for line in output.read_text().splitlines()]
            for ours, theirs in zip(answers[DEVICE], answers["cpu"], strict=True):
                with self.subTest(model=model, kv=kv, line=theirs["index"]):
                    self.assertIsNone(difference(ours, theirs))

    def test_deterministic_answers_do_not_depend_on_neighbours(self):
        def answers(size, *options):
            logprobs = ("--logprobs", "2") if IS_EMULATED else ()  # elsewhere all jobs have them
            arguments = self.jobs.command("job", "--policy", "device-only", "--overwrite", *logprobs, *options, tokens=6)
            arguments[arguments.index("--batch-size") + 1] = size
            done = subprocess.run(arguments, capture_output=True, text=True, timeout=JOB_SECONDS, check=False,
                                  env=self.jobs.environment("schedule=3,library=2"))
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])
            return (self.jobs.folder / "job.jsonl").read_bytes()

        dense = ("--kv-dtype", "fp16")
        if IS_EMULATED:  # a real library may round alike
            self.assertNotEqual(answers("1", *dense), answers("4", *dense), "neighbours change nothing by themselves")
        for attention in (dense, ("--kv-dtype", "int8", "--kv-block", "32"),
                          *((*dense, "--attention", method, "--kv-sparsity", "0.6")
                            for method in ("swa", "h2o", "sparq"))):
            with self.subTest(attention=attention):
                self.assertEqual(answers("1", "--deterministic", *attention), answers("4", "--deterministic", *attention))

    # As many as run together where no batch size is given.
    def test_large_batches_answer_as_small_ones(self):
        self.jobs.write_prompts("wide", [3 + line % 7 for line in range(130)])
        for method in ("dense", "swa"):
            answers = {}
            for batch in (16, 130):
                summary, answers[batch] = self.jobs.run(f"wide-{method}-{batch}", "--policy", "device-only", "--kv-dtype",
                                                        "fp16", "--deterministic", *self.jobs.attention(method),
                                                        tokens=2, prompts="wide", batch=batch)  # fmt: skip
                self.assertEqual(summary["max_batch"], batch)
            self.assertEqual(answers[16], answers[130], method)

    def test_budgets_hold(self):
        _, expected = self.jobs.run("reference", "--policy", "device-only")
        summary, answers = self.jobs.run("tight", *POLICIES["triphase"])
        self.check(answers, expected)
        used = {(part["tier"], part["tag"]): part for part in summary["memory"]}
        for name, part in used.items():
            self.assertLessEqual(part["peak_bytes"], part["planned_bytes"], name)
        on_device = sum(used["device", tag]["planned_bytes"] for tag in ("kv", "staging"))
        self.assertLessEqual(on_device, 260 << 10)
        self.assertGreater(used["host", "kv"]["peak_bytes"], 0)
        # Nowhere else to go: lines that cannot fit fail by themselves.
        errors, _ = self.jobs.run("small", "--policy", "device-only", "--device-kv-memory", "64KiB", ending=1)
        self.assertRegex(errors, r"6 records, [1-5] failed")

    @unittest.skipUnless(IS_EMULATED, "a real GPU has the memory that it has")
    def test_prompts_take_longer_steps_where_memory_allows(self):
        shipped = ("--model", str(ROOT / "models/shipped/triphase-gqa"), "--dry-run")

        def plan_of(*options, ending=0):
            command = [ARGUMENTS.program, "run", *shipped, "--prompts", str(ROOT / "models/shipped/prompts.jsonl"), "--device",
                       DEVICE, "--output", str(self.jobs.folder / "dry.jsonl"), *options]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, timeout=JOB_SECONDS, check=False,
                                  env=self.jobs.environment("schedule=0"))  # fmt: skip
            self.assertEqual(done.returncode, ending, done.stderr[-2000:])
            return done.stderr

        self.assertIn("prefill chunk 1024 tokens", plan_of())
        self.assertIn("prefill chunk 48 tokens", plan_of("--prefill-chunk", "48"))
        # What an error says would fit does, and no line fails.
        room = re.search(r"--device-memory (\d+)B would fit batch 1", plan_of("--device-memory", "1MiB", ending=5))
        self.assertIn("prefill chunk 256 tokens", plan_of("--device-memory", f"{room.group(1)}B", "--batch-size",
                                                            "1"))
        # Between too little and enough for 1024: half of that.
        chunks = [int(re.search(r"prefill chunk (\d+) tokens", plan_of("--device-memory", f"{mib}MiB")).group(1))
                  for mib in (80, 128, 200, 600)]
        self.assertEqual(chunks, sorted(chunks))
        self.assertEqual(set(chunks), {256, 512, 1024})

    def test_a_killed_or_failed_job_resumes(self):
        # So long that it is still under way when its first lines are there.
        self.jobs.write_prompts("many", LENGTHS * (1 if IS_EMULATED else 40))
        job = {"tokens": 60, "prompts": "many"}
        _, expected = self.jobs.run("reference", "--policy", "device-only", **job)
        policy = POLICIES["flexgen"]
        process = subprocess.Popen(self.jobs.command("killed", *policy, **job), stderr=subprocess.DEVNULL,
                                   env=self.jobs.environment("schedule=2"))
        part = self.jobs.folder / "killed.jsonl.part"
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if part.exists() and part.stat().st_size > 0:
                break
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        self.assertEqual(process.wait(), -signal.SIGKILL, "ended before it could be killed")
        _, answers = self.jobs.run("killed", *policy, **job)
        self.check(answers, expected)
        for fault in ("fail-launch=3000", "fail-copy=600") if IS_EMULATED else ():
            with self.subTest(fault=fault):
                errors, _ = self.jobs.run("failed", *policy, "--overwrite", machine=fault, ending=7, **job)
                self.assertIn("[E-DEV-CUDA]", errors)
                _, answers = self.jobs.run("failed", *policy, **job)
                self.check(answers, expected)

    @unittest.skipUnless(IS_EMULATED, "a real GPU does not fail on demand")
    def test_a_step_that_fails_as_it_begins_loses_nothing_of_the_one_before(self):
        self.jobs.write_prompts("two", LENGTHS[:2], most={0: 3})
        file = self.jobs.folder / "counts.json"
        # The first launch after line 0 has its last token, whose step is under way where the next one is queued ahead.
        for tokens, extra in ((3, ("--repetition-penalty", "1.1")), (4, ())):
            with self.subTest(extra=extra):
                job = ("--policy", "device-only", "--overwrite", *extra)
                self.jobs.run("short", *job, prompts="two", tokens=tokens, machine=f"counts={file}")
                launches = json.loads(file.read_text())["launches"]
                errors, _ = self.jobs.run("failed", *job, prompts="two", machine=f"fail-launch={launches + 1}", ending=7)
                self.assertIn("[E-DEV-CUDA]", errors)
                part = (self.jobs.folder / "failed.jsonl.part").read_text().splitlines()
                self.assertEqual([json.loads(line)["id"] for line in part], ["0"])

    def test_experts(self):
        """The same answers wherever weights and KV lie, and beside any neighbours; those of the CPU."""
        for name, shape in (("some", experts(8, 2)), ("all", experts(3, 3))):
            (self.jobs.folder / f"{name}.json").write_text(json.dumps(shape))
        policy = list(POLICIES["triphase"])
        policy[policy.index("260KiB")] = "600KiB"
        for kv, place in (("fp16", POLICIES["flexgen"]), ("int8", policy)):  # flexgen's streams weights
            common = ("--kv-dtype", kv, "--kv-block", "32", "--overwrite")
            alone = ("--policy", "device-only", *common)
            with self.subTest(kv=kv):
                _, expected = self.jobs.run("reference", *alone, model="some", tokens=12)
                summary, answers = self.jobs.run("job", *place, *common, model="some", tokens=12, machine="schedule=1")
                self.check(answers, expected)
                self.assertGreater(summary["moved_bytes"]["to_device"], 0)
                for part in summary["memory"]:
                    self.assertLessEqual(part["peak_bytes"], part["planned_bytes"], part)
                one, four = (self.jobs.run("job", *alone, "--deterministic", model="some", tokens=6, batch=batch)[1]
                             for batch in (1, 4))
                self.assertEqual(one, four)
                # Where rows go through all of them, rounding chooses no others.
                logprobs = ("--logprobs", "2") if IS_EMULATED else ()  # elsewhere all jobs have them
                _, theirs = self.jobs.run("cpu", *alone, model="all", tokens=12, device="cpu")
                for extra in ((), ("--deterministic",)):
                    _, ours = self.jobs.run("job", *alone, *logprobs, *extra, model="all", tokens=12)
                    for line, other in zip(ours.splitlines(), theirs.splitlines(), strict=True):
                        self.assertIsNone(difference(json.loads(line), json.loads(other)))

    def test_sliding_windows(self):
        """The answers of the CPU, and the same wherever KV lies. Layers with a window keep KV as far back as it reaches:
        in jobs of the device alone, and of both tiers where the device has room for it."""
        shape = windowed(16, sliding=(True, False, True))
        (self.jobs.folder / "windowed.json").write_text(json.dumps(shape))
        apart = "2 of 3 layers keep KV as far back as their window of 16 tokens reaches"
        cases = (("dense", "fp16", "260KiB", False), ("dense", "fp16", "480KiB", True), ("dense", "int8", "480KiB", True),
                 ("swa", "int8", "480KiB", True), ("sparq", "fp16", "600KiB", True))  # fmt: skip
        for method, kv, room, keeps_apart in cases:
            policy = list(POLICIES["triphase"])
            policy[policy.index("260KiB")] = room
            job = ("--kv-dtype", kv, "--kv-block", "32", "--overwrite", *self.jobs.attention(method))
            with self.subTest(method=method, kv=kv, room=room):
                _, alone = self.jobs.run("reference", "--policy", "device-only", *job, model="windowed")
                self.assertIn(apart, self.jobs.log)
                summary, answers = self.jobs.run("job", *policy, *job, model="windowed", machine="schedule=1")
                # Of the plan that lines run under; a longer one would wait for a plan of its own.
                self.assertEqual(apart in self.jobs.log.split("wait for the others")[0], keeps_apart, self.jobs.log)
                self.check(answers, alone)
                self.assertGreater(summary["moved_bytes"]["to_device"], 0)
                logprobs = ("--logprobs", "2") if IS_EMULATED else ()  # elsewhere all jobs have them
                _, theirs = self.jobs.run("cpu", "--policy", "device-only", *job, model="windowed", device="cpu")
                _, ours = self.jobs.run("job", "--policy", "device-only", *job, *logprobs, model="windowed")
                for line, other in zip(ours.splitlines(), theirs.splitlines(), strict=True):
                    self.assertIsNone(difference(json.loads(line), json.loads(other)))

    def test_requests_end_while_the_next_step_is_under_way(self):
        """Of whose end nobody knows when the next step is queued, or of whose end everybody does. A traced job queues no
        step ahead."""
        shape = {**config(2), "num_hidden_layers": 1, "eos_token_id": list(range(2, 300, 20))}
        (self.jobs.folder / "ending.json").write_text(json.dumps(shape))
        most = {line: 1 + line * 5 % 23 for line in range(0, 12, 2)}
        self.jobs.write_prompts("many", LENGTHS * 2, most)
        # All have a block at first, and soon need two.
        self.jobs.write_prompts("growing", (28,) * 12, most)
        # With this seed requests are preempted of which the step under way turns out to draw the last token. On a real
        # GPU a draw may differ by a last bit of a logit.
        greedy = ("--temperature", "0")
        drawn = ("--temperature", "1", "--seed", "5") if IS_EMULATED else greedy
        tight = [{"260KiB": "128KiB"}.get(option, option) for option in TIGHT]
        vllm, triphase, alone = (("--policy", policy) for policy in ("vllm", "triphase", "device-only"))
        swap, drop = (options(f"preemption={how}") for how in ("swap", "recompute"))
        cases = (("device", alone, "dense", drawn),
                 ("by history", alone, "dense", (*drawn, "--repetition-penalty", "1.2")),
                 ("host", (*triphase, *options("p1=2", "alpha=0.8"), *tight), "dense", greedy),
                 ("swa", (*triphase, *options("p1=2", "alpha=0.8"), *tight), "swa", drawn),
                 ("h2o", alone, "h2o", drawn),
                 ("sparq", alone, "sparq", drawn),
                 ("swap", (*vllm, *swap, *tight), "dense", drawn),
                 ("drop", (*vllm, *drop, *tight), "dense", drawn))  # fmt: skip
        ends = collections.Counter()
        for name, policy, method, draw in cases:
            with self.subTest(name=name):
                preempts = name in ("swap", "drop")
                prompts = {"prompts": "growing", "batch": 12} if preempts else {"prompts": "many"}
                job = {**prompts, "model": "ending", "tokens": 48, "draw": draw}
                extra = (*policy, *self.jobs.attention(method), "--overwrite")
                trace = ("--trace", str(self.jobs.folder / "ending.trace.json"))
                _, one_by_one = self.jobs.run("traced", *extra, *trace, **job)
                summary, answers = self.jobs.run("ahead", *extra, machine="schedule=5", **job)
                self.check(answers, one_by_one)
                self.assertEqual(summary["placement"]["preemptions"] > 0, preempts)
                ends.update(json.loads(line)["finish_reason"] for line in answers.splitlines())
        if IS_EMULATED:
            self.assertGreater(min(ends["stop"], ends["length"]), 15, ends)

    def traced(self, name, *extra, **job):
        """Spans by track, as (name, begin, end, values) with nanoseconds, and the summary and answers of the job."""
        file = self.jobs.folder / f"{name}.trace.json"
        summary, answers = self.jobs.run(name, *extra, "--trace", str(file), **job)
        tracks = collections.defaultdict(list)
        names = {}
        for event in json.loads(file.read_text())["traceEvents"]:
            if event["name"] == "thread_name":
                names[event["tid"]] = event["args"]["name"]
            elif event["ph"] == "X":
                begin = round(event["ts"] * 1000)
                end = begin + round(event["dur"] * 1000)
                tracks[names[event["tid"]]].append((event["name"], begin, end, event["args"]))
        return tracks, summary, answers

    def check_nested(self, spans):
        open_ends = []
        for name, begin, end, _ in sorted(spans, key=lambda span: (span[1], -span[2])):
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            if open_ends:
                self.assertLessEqual(end, open_ends[-1], name)
            open_ends.append(end)

    def check_in_order(self, spans):
        for (_, _, end, _), (name, begin, _, _) in itertools.pairwise(sorted(spans, key=lambda span: span[1:3])):
            self.assertLessEqual(end, begin, name)

    def test_a_trace_has_the_times_of_the_device(self):
        self.jobs.write_prompts("two", LENGTHS[:2])
        job = {"tokens": 6, "prompts": "two"}
        asked = {}
        for traced in (False, True):
            file = self.jobs.folder / "counts.json"
            machine = f"schedule=0,counts={file}"
            if traced:
                tracks, summary, answers = self.traced("traced", "--policy", "device-only", machine=machine, **job)
            else:
                _, expected = self.jobs.run("plain", "--policy", "device-only", machine=machine, **job)
            if IS_EMULATED:
                asked[traced] = json.loads(file.read_text())
        self.check(answers, expected)
        compute = tracks["compute"]
        self.check_nested(compute)
        for name, times in (("forward", 1), ("embed", 1), ("layer", 3), ("qkv", 3), ("append", 3), ("attend", 3),
                            ("output", 3), ("mlp", 3), ("head", 1), ("sample", 1)):
            self.assertEqual(sum(span[0] == name for span in compute), times * summary["steps"], name)
        roots = [span for span in compute if span[0] in ("forward", "sample")]
        self.check_in_order(roots)
        steps = [span for span in tracks["steps"] if span[3].get("requests")]
        self.assertEqual(len(steps), summary["steps"])
        for at, (_, begin, end, _) in enumerate(steps):
            inside = [span for span in compute if begin <= span[1] and span[2] <= end]
            self.assertEqual(len(inside), len(compute) // len(steps), f"step {at}")
            queue, wait, sample = ([span for span in tracks["host work"] if span[0] == name and begin <= span[1] < end]
                                   for name in ("queue", "wait for device", "sample"))
            self.assertEqual((len(queue), len(wait), len(sample)), (1, 1, 1))
            self.check_in_order([*queue, *sample])
            self.check_nested([*sample, *wait])
            if IS_EMULATED:  # it does nothing until the host waits
                for name, start, _, _ in inside:
                    self.assertGreaterEqual(start, wait[0][1], name)
        if not IS_EMULATED:
            return
        # A pair of events a span, and the origin of their times, which is the only wait more.
        for name, more in (("launches", 0), ("uploads", 0), ("downloads", 0), ("pageable", 0), ("allocations", 0),
                           ("waits", 1), ("events", 1 + 2 * len(compute))):
            self.assertEqual(asked[True][name] - asked[False][name], more, name)

    def test_lines_are_read_while_a_step_computes(self):
        with (self.jobs.folder / "slow.jsonl").open("w") as out:
            for line in range(6):  # the field is not known: it takes time to read
                print(json.dumps({"id": line, "prompt_tokens": [5 + line, 7, 9], "note": "x " * 2000000}), file=out)
        tracks, _, _ = self.traced("read", "--policy", "device-only", prompts="slow", tokens=3, batch=1)
        spans = sorted((span for span in tracks["host work"] if span[0] in ("queue", "sample")), key=lambda span: span[1])
        gaps = [begin - end for (_, _, end, _), (_, begin, _, _) in itertools.pairwise(spans)]
        self.assertEqual([name for name, *_ in spans], ["queue", "sample"] * (len(spans) // 2))
        self.assertGreater(sum(gaps[::2]), 10 * sum(gaps[1::2]))

    def test_a_trace_shows_what_compute_waits_for(self):
        _, expected = self.jobs.run("reference", "--policy", "device-only", "--cached-hidden-states", "96", tokens=40)
        for schedule in (1, 4):
            with self.subTest(schedule=schedule):
                tracks, summary, answers = self.traced(
                    "job", "--policy", "triphase", *RECOMPUTE, *TIGHT, "--kv-dtype", "bf16", "--overwrite", tokens=40,
                    machine=f"schedule={schedule}")  # fmt: skip
                self.check(answers, expected)
                for spans in tracks.values():
                    self.check_nested(spans)
                self.check_nested([*tracks["compute"], *tracks["recompute"]])
                recomputed = sum(span[3]["tokens"] for span in tracks["recompute"])
                self.assertGreater(recomputed, 0)
                waits = [span for span in tracks["compute"] if span[0] == "wait for KV"]
                self.assertGreater(max(end - begin for _, begin, end, _ in waits), 0)
                for track, direction in (("link to device", "to_device"), ("link to host", "to_host")):
                    self.check_in_order(tracks[track])
                    moved = sum(span[3]["bytes"] for span in tracks[track])
                    self.assertEqual(moved, summary["moved_bytes"][direction])
                # All in the time of the job.
                begin = min(span[1] for span in tracks["steps"])
                for spans in tracks.values():
                    self.assertGreaterEqual(min(span[1] for span in spans), begin)

    def test_a_trace_has_the_steps_that_nobody_waited_for(self):
        tracks, summary, _ = self.traced("chunks", "--policy", "device-only", "--prefill-chunk", "16", tokens=4,
                                         machine="schedule=3")
        for spans in tracks.values():
            self.check_nested(spans)
        roots = [span for span in tracks["compute"] if span[0] in ("forward", "sample")]
        self.check_in_order(roots)
        names = collections.Counter(name for name, *_ in roots)
        self.assertEqual(names["forward"], summary["steps"])
        self.assertLess(names["sample"], summary["steps"], "some step wants no token")

    @unittest.skipUnless(IS_EMULATED, "a real GPU is not lost on demand")
    def test_a_lost_device_ends_a_traced_job_as_any_other(self):
        _, expected = self.jobs.run("reference", "--policy", "device-only")
        file = self.jobs.folder / "lost.trace.json"
        # Room on the host for the model's own context, so that many blocks are copied.
        policy = (*POLICIES["flexgen"], "--max-context", "512")
        for fault in ("fail-launch=1500", "fail-copy=300"):
            with self.subTest(fault=fault):
                errors, _ = self.jobs.run("lost", *policy, "--overwrite", "--trace", str(file), ending=7, machine=fault)
                self.assertIn("[E-DEV-CUDA]", errors)
                self.assertGreater(len(json.loads(file.read_text())["traceEvents"]), 100)
                _, answers = self.jobs.run("lost", *policy)
                self.check(answers, expected)

    @unittest.skipUnless(IS_EMULATED, "a real GPU refuses nothing on demand")
    def test_refused_memory(self):
        # Before anything is loaded: what it says would fit does.
        errors, _ = self.jobs.run("small", "--policy", "device-only", machine="memory=30000000", ending=5)
        self.assertRegex(errors, r"device memory: .* the budget is 28\.6 MiB.*\[E-MEM-FIT\]")
        room = re.search(r"hint: --device-memory (\d+B) would fit batch 1", errors).group(1)
        self.jobs.run("small", "--policy", "device-only", "--device-memory", room, batch=1, tokens=2)
        # While it loads: what else uses the GPU is not known before.
        errors, _ = self.jobs.run("refused", "--policy", "device-only", machine="fail-allocation=8", ending=5)
        self.assertIn("[E-MEM-ALLOC]", errors)
        self.assertRegex(errors, r"are refused, this job holds .* of 2\.0 GiB are free.*--device-memory \d+MiB fits")
        self.assertEqual(list(self.jobs.folder.glob("refused.jsonl*")), [])
        _, expected = self.jobs.run("reference", "--policy", "device-only")
        _, answers = self.jobs.run("unpinned", *POLICIES["flexgen"], machine="fail-pin=1,schedule=5")
        self.check(answers, expected)

    @unittest.skipUnless(IS_EMULATED, "a real GPU refuses nothing on demand")
    def test_memory_refused_in_the_middle_of_a_job(self):
        # What SWA keeps of long lines is allocated when they begin, after short ones have ended.
        self.jobs.write_prompts("growing", (20,) * 8 + (100, 100))
        job = {"tokens": 12, "prompts": "growing"}
        swa = ("--policy", "device-only", "--attention", "swa", "--kv-sparsity", "0.6")
        file = self.jobs.folder / "counts.json"
        _, expected = self.jobs.run("reference", *swa, machine=f"counts={file}", **job)
        last = json.loads(file.read_text())["blocks"]
        errors, _ = self.jobs.run("late", *swa, machine=f"fail-allocation={last}", ending=5, **job)
        self.assertIn("[E-MEM-ALLOC]", errors)
        self.assertRegex(errors, r"--device-memory \d+MiB fits")
        finished = len((self.jobs.folder / "late.jsonl.part").read_bytes().splitlines())
        self.assertGreater(finished, 0)
        summary, answers = self.jobs.run("late", *swa, **job)
        self.assertEqual(summary["requests"]["resumed"], finished)
        self.check(answers, expected)

    def test_the_log_says_what_pinning_took(self):
        self.jobs.run("job", *POLICIES["flexgen"], tokens=4)
        self.assertRegex(self.jobs.log, r"host memory: [\d.]+ [KMG]iB pinned in \d+\.\d s\n")
        self.jobs.run("alone", "--policy", "device-only", tokens=4)
        self.assertNotIn("host memory", self.jobs.log)
        if IS_EMULATED:
            self.jobs.run("unpinned", *POLICIES["flexgen"], tokens=4, machine="fail-pin=1")
            self.assertRegex(self.jobs.log, "host memory: .* not pinned, which makes copies slower: a refusal")

    @unittest.skipUnless(IS_EMULATED, "a real GPU has the driver that it has")
    def test_drivers_that_are_missing_or_too_old(self):
        for driver, words in (("0", "none on this machine"), ("12040", "one for CUDA 12.4 at most")):
            errors, _ = self.jobs.run("driver", machine=f"driver={driver}", ending=5)
            self.assertEqual(errors.count("triphase: error:"), 1, errors)
            for part in ("GPU driver: " + words, "CUDA 13.0 or later", "--device=cpu", "[E-DEV-NONE]"):
                self.assertIn(part, errors)
        self.assertEqual(list(self.jobs.folder.glob("driver.jsonl*")), [])
        # A later one will do, and who leaves the choice to the program hears why it takes the CPU.
        self.jobs.run("later", machine="driver=14010", tokens=2)
        for driver, warnings in (("12040", 1), ("0", 0)):
            self.jobs.run("auto", "--overwrite", machine=f"driver={driver}", device="auto", tokens=2)
            self.assertEqual(self.jobs.log.count("--device auto takes the CPU: GPU driver: one for CUDA 12"), warnings)

    def test_devices_that_are_not_there(self):
        # Builds without CUDA do not know how GPUs are called.
        for device, endings in (("cuda:emulated", (2, 5)), ("gpu", (2,)), ("cuda:77", (5,))):
            command = self.jobs.command("none", device=device)
            done = subprocess.run([ARGUMENTS.triphase, *command[1:]], capture_output=True, text=True, timeout=60)
            self.assertIn(done.returncode, endings, done.stderr)
            self.assertIn(f"--device: {device}" if device != "cuda:77" else "[E-DEV-NONE]", done.stderr)


if __name__ == "__main__":
    program = unittest.main(argv=[sys.argv[0], *OTHERS], exit=False)
    print(f"answers: {Answers.seen['same']} the same, {Answers.seen['close']} but for close calls, "
          f"{Answers.seen['wrong']} wrong")
    sys.exit(not program.result.wasSuccessful())
