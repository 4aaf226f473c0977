#!/usr/bin/env python3
"""run --trace: the file agrees with the summary, and tracing changes nothing.

Usage: trace_test.py TRIPHASE MODEL PROMPTS [NVTX_LISTENER]
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from collections import defaultdict
from pathlib import Path

PROGRAM, MODEL, PROMPTS = sys.argv[1], sys.argv[2], sys.argv[3]
LISTENER = sys.argv[4] if len(sys.argv) > 4 else None
STEPS, PHASES, HOST, COMPUTE, RECOMPUTE, TO_DEVICE, TO_HOST = range(1, 8)
NUMERALS = {1: "Phase I", 2: "Phase II", 3: "Phase III"}


def nanoseconds(event: dict) -> tuple[int, int]:
    begin = round(event["ts"] * 1000)
    return begin, begin + round(event.get("dur", 0) * 1000)


class Trace(unittest.TestCase):
    environment: dict[str, str] | None = None

    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def run_job(
        self, name: str, *extra: str, prompts: str = PROMPTS, memory: str = "16MiB"
    ) -> tuple[bytes, dict, str]:
        output = Path(self.folder.name) / f"{name}.jsonl"
        command = [
            PROGRAM, "run", "--model", MODEL, "--prompts", prompts, "--output", str(output),
            "--max-context", "384", "--batch-size", "8", "--max-tokens", "32", "--progress", "off",
            "--policy-option=p1=8", "--policy-option=alpha=0.8", "--policy-option=window=8",
            "--device-memory", memory, "--host-memory", "256MiB", "--ignore-eos", *extra,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=self.environment)
        # 1: some prompts are longer than --max-context.
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return output.read_bytes(), json.loads(Path(f"{output}.summary.json").read_text()), done.stderr

    def traced(self, name: str, *extra: str, **job: str):
        path = Path(self.folder.name) / f"{name}.trace.json"
        text, summary, log = self.run_job(name, "--trace", str(path), *extra, **job)
        trace = json.loads(path.read_text())
        lanes = defaultdict(list)
        for event in trace["traceEvents"]:
            if event["ph"] == "X":
                lanes[event["tid"]].append(event)
        return text, summary, trace, lanes, log

    @unittest.skipUnless(LISTENER, "a build without NVTX")
    def test_profilers_see_ranges_of_the_same_names(self) -> None:
        heard = Path(self.folder.name) / "heard.txt"
        self.environment = dict(os.environ, NVTX_INJECTION64_PATH=str(LISTENER), NVTX_LISTENER_FILE=str(heard))
        _, _, _, lanes, _ = self.traced("listened", "--emulate-link", "100MB/s,20us")
        first, *lines = heard.read_text().splitlines()
        self.assertEqual(first, "0 still open in triphase")
        ranges = {name: int(count) for count, name in (line.split(" ", 1) for line in lines)}
        spans = defaultdict(int)
        for lane in (STEPS, HOST, COMPUTE, RECOMPUTE):
            for event in lanes[lane]:
                spans[event["name"]] += 1
        self.assertGreater(spans["attend"], 0)
        for name, count in spans.items():
            self.assertEqual(ranges.get(name), count, name)
        # Without --trace there are ranges all the same.
        heard.unlink()
        self.run_job("untraced", "--emulate-link", "100MB/s,20us")
        self.assertIn(f"{spans['attend']} attend", heard.read_text().splitlines())

    def test_agrees_with_the_summary_and_changes_nothing(self) -> None:
        plain, _, _ = self.run_job("plain")
        text, summary, trace, lanes, log = self.traced("traced", "--emulate-link", "100MB/s,20us")
        self.assertEqual(text, plain)
        self.assertIn("link", trace["otherData"]["emulated"])

        # Spans of one lane nest.
        for lane, events in lanes.items():
            open_ends = []
            for event in sorted(events, key=lambda e: (nanoseconds(e)[0], -nanoseconds(e)[1])):
                begin, end = nanoseconds(event)
                while open_ends and open_ends[-1] <= begin:
                    open_ends.pop()
                if open_ends:
                    self.assertLessEqual(end, open_ends[-1], f"lane {lane}: {event}")
                open_ends.append(end)

        # Bytes are the summary's.
        for lane, direction in ((TO_DEVICE, "to_device"), (TO_HOST, "to_host")):
            moved = sum(event["args"]["bytes"] for event in lanes[lane])
            self.assertEqual(moved, summary["moved_bytes"][direction])
            self.assertGreater(moved, 0)

        # Some of what is fetched arrives while the model computes.
        work = [nanoseconds(e) for e in lanes[COMPUTE] if e["name"] in ("attend", "mlp", "output")]
        fetched = [nanoseconds(event) for event in lanes[TO_DEVICE]]
        both = sum(1 for b, e in fetched for c, d in work if b < d and c < e)
        self.assertGreater(both, 0)

        # Steps and phases are the summary's.
        steps = [event for event in lanes[STEPS] if event["args"].get("requests", 0) > 0]
        self.assertEqual(len(steps), summary["steps"])
        for phase in summary["placement"]["phases"]:
            spans = [e for e in lanes[PHASES] if e["name"] == NUMERALS[phase["phase"]]]
            self.assertEqual(sum(e["args"]["steps"] for e in spans), phase["steps"])
        (boundary,) = summary["placement"]["phase_boundaries"]
        self.assertEqual(boundary["phase"], 2)
        entered: dict[int, int] = {}
        for event in sorted(trace["traceEvents"], key=lambda e: e.get("ts", 0)):
            if event["ph"] == "b" and event["name"] == "Phase II":
                entered.setdefault(event["id"], event["args"]["context"])
        self.assertEqual(len(entered), boundary["requests"])
        self.assertEqual(min(entered.values()), boundary["contexts"]["least"])
        self.assertEqual(max(entered.values()), boundary["contexts"]["most"])
        # The prompts are of many lengths: every line has its own boundary.
        self.assertLess(boundary["contexts"]["least"], boundary["contexts"]["most"])
        self.assertIn("Phase II", log)

    def test_a_uniform_batch_has_one_boundary(self) -> None:
        prompts = Path(self.folder.name) / "prompts.jsonl"
        with prompts.open("w") as file:
            for line in range(8):
                tokens = [3 + (17 * line + 5 * token) % 250 for token in range(96)]
                print(json.dumps({"id": str(line), "prompt_tokens": tokens}), file=file)
        _, summary, trace, lanes, _ = self.traced(
            "uniform", "--prefill-chunk", "1024", memory="32MiB", prompts=str(prompts)
        )
        (boundary,) = summary["placement"]["phase_boundaries"]
        self.assertEqual(boundary["requests"], 8)
        for field in ("contexts", "generated"):
            self.assertEqual(boundary[field]["least"], boundary[field]["most"])
        self.assertEqual(boundary["steps"]["first"], boundary["steps"]["last"])
        self.assertEqual([e["name"] for e in lanes[PHASES]], ["Phase I", "Phase II"])
        self.assertEqual(lanes[PHASES][1]["args"]["first_step"], boundary["steps"]["first"])

    def test_a_file_that_is_no_trace_is_kept(self) -> None:
        precious = Path(self.folder.name) / "notes.txt"
        precious.write_text("do not lose")
        done = subprocess.run(
            [PROGRAM, "run", "--model", MODEL, "--prompts", PROMPTS, "--output",
             str(Path(self.folder.name) / "o.jsonl"), "--trace", str(precious)],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--trace", done.stderr)
        self.assertEqual(precious.read_text(), "do not lose")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
