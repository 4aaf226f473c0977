"""Runs `triphase`, and divides the time among what is still to do."""

import json
import math
import os
import subprocess
import time

from accuracy.texts import ROOT, text_of

SEED = "11"
# Below these, a number would be of one lucky sample; above, the text repeats itself or nothing is gained.
LIMITS = {"perplexity": (4, 16), "repetition": (6, 100), "needle": (1, 20), "attention": (1, 2), "ablations": (6, 100),
          "questions": (1, 12)}


class Program:
    def __init__(self, program, threads, window, text, folder):
        self.program = os.path.abspath(program)
        self.threads = threads
        self.window = window
        self.folder = folder
        self.text = text_of(text)
        self.whole = folder / "text.txt"
        self.whole.write_text(self.text, encoding="utf-8")

    @staticmethod
    def model(name):
        return ROOT / "models" / "shipped" / name

    def config(self, model):
        return json.loads((self.model(model) / "config.json").read_text(encoding="utf-8"))

    def channels(self, model):
        """Of one head."""
        config = self.config(model)
        return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]

    def parameters(self, model):
        """Numbers in the weight file, by its header."""
        with open(self.model(model) / "model.safetensors", "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")

    @property
    def short_window(self):
        """Tokens of the tasks that need many samples more than long ones."""
        return self.window // 2

    def call(self, command, model, *arguments):
        whole = [self.program, command, "--model", str(self.model(model)), "--threads", str(self.threads), "--progress",
                 "off", "--quiet", *map(str, arguments)]
        done = subprocess.run(whole, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(whole)}\n{done.stderr}")
        return done.stdout

    def count_tokens(self, model, text):
        request, answer = self.folder / "count.jsonl", self.folder / "count.out"
        request.write_text(json.dumps({"text": text}) + "\n", encoding="utf-8")
        self.call("score", model, "--requests", request, "--output", answer, "--overwrite")
        return len(json.loads(answer.read_text(encoding="utf-8"))["tokens"])

    def eval(self, model, task, count, *arguments):
        """Rows of one `triphase eval`; count: windows of perplexity and attention, samples of the others."""
        options = ["--task", task, "--samples", count, "--seed", SEED, "--format", "json"]
        if task in ("perplexity", "attention"):
            options += ["--window", self.short_window, "--prefill-len", self.short_window // 2]
            options += ["--data", self.text_of_windows(model, count)]
        elif task == "repetition":
            options += ["--window", self.short_window, "--cue-len", 24, "--answer-len", 32, "--data", self.whole]
        elif task == "needle":
            options += ["--data", self.whole]
        return json.loads(self.call("eval", model, *options, *arguments))

    def text_of_windows(self, model, windows):
        """perplexity scores all windows of a text, so that their number is the text's length."""
        path = self.folder / f"windows-{windows}.txt"
        if not path.exists():
            sample = self.text[:20000]
            characters = windows * (self.short_window - 1) * len(sample) / self.count_tokens(model, sample)
            path.write_text(self.text[:int(characters)], encoding="utf-8")
        return path


class Budget:
    """Seconds for each part: what is left, divided by the weights of the parts still to do."""

    def __init__(self, minutes, weights):
        self.end = time.monotonic() + 60 * minutes
        self.weights = dict(weights)

    def count(self, part, limits, cells, probe):
        """How many samples of each cell fit into the part's share; probe(count) -> cells that it ran."""
        weight = self.weights.pop(part)
        low, high = limits
        begin = time.monotonic()
        share = max(0.0, self.end - begin) * weight / (weight + sum(self.weights.values()))
        if share == 0.0:
            return low
        probed = probe(low)
        spent = time.monotonic() - begin
        return max(low, min(high, int(0.9 * (share - spent) * probed * low / (spent * cells))))
