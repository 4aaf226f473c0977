#!/usr/bin/env python3
"""tools/lab/make_fixed_context_questions.py and what tools/lab/accuracy_report.py says about numbers. Standard library only."""

import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "tools" / "lab" / "make_fixed_context_questions.py"
sys.path.insert(0, str(ROOT / "tools" / "lab"))

from accuracy import methods, papers, program, reasons, scores, sparq_ablations  # noqa: E402
from accuracy.texts import pieces_of, prose, spread  # noqa: E402
from make_fixed_context_questions import TAIL_CHARACTERS, make_document, question_lines, sentences_of  # noqa: E402

TEXT = " ".join(f"Sentence {n} says that nothing of note was seen on day {n} of that quiet year." for n in range(400))


class Questions(unittest.TestCase):
    def test_every_fact_is_hidden_once_and_asked_for_once(self):
        context, facts = make_document(TEXT, 6000, 24, seed=3)
        self.assertEqual(len(facts), 24)
        self.assertLessEqual(len(context), 6000)
        self.assertGreater(len(context), 5800)
        for fact in facts:
            self.assertEqual(context.count(fact.statement), 1)
            lead = fact.statement[:fact.statement.index(fact.value)].rstrip()
            self.assertTrue(fact.prompt().endswith(lead), fact)
            self.assertNotIn(fact.value, fact.prompt())
            self.assertEqual(fact.statement[len(lead):].strip(), fact.value + ".")
        places = sorted(context.index(fact.statement) for fact in facts)
        self.assertLess(places[0], 600)
        self.assertGreater(len(context) - places[-1], TAIL_CHARACTERS)
        gaps = [after - before for before, after in zip(places, places[1:])]
        self.assertLess(max(gaps), 3 * sum(gaps) / len(gaps))
        # What is left when the facts are taken out is the text, in its order.
        for fact in facts:
            context = context.replace(fact.statement + " ", "")
        self.assertIn(context, f"{TEXT} {TEXT}")
        lines = [json.loads(line) for line in question_lines(facts).splitlines()]
        self.assertEqual([(line["prompt"], line["answer"]) for line in lines], [(one.prompt(), one.value) for one in facts])

    def test_seed_and_forms(self):
        self.assertEqual(make_document(TEXT, 6000, 12, 1), make_document(TEXT, 6000, 12, 1))
        self.assertNotEqual(make_document(TEXT, 6000, 12, 1)[0], make_document(TEXT, 6000, 12, 2)[0])
        _, facts = make_document(TEXT, 6000, 12, 1, forms=1)
        self.assertTrue(all(fact.statement.startswith("The secret code of ") for fact in facts))
        _, facts = make_document(TEXT, 6000, 12, 1)
        self.assertEqual(len({fact.statement.split(" of ")[0] for fact in facts}), 4)

    def test_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            files = ["--context", f"{folder}/c.txt", "--questions", f"{folder}/q.jsonl"]
            subprocess.run([sys.executable, TOOL, *files, "--facts", "8"], check=True)
            context = pathlib.Path(folder, "c.txt").read_text(encoding="utf-8")
            self.assertEqual(len(pathlib.Path(folder, "q.jsonl").read_text(encoding="utf-8").splitlines()), 8)
            self.assertGreater(len(sentences_of(context)), 16)
            short = subprocess.run([sys.executable, TOOL, *files, "--characters", "900"], check=False, capture_output=True,
                                   text=True)
            self.assertNotEqual(short.returncode, 0)
            self.assertIn("--characters: found 900, expected at least", short.stderr)


class Sentences(unittest.TestCase):
    def test_place_beside_a_paper(self):
        published = (0.8, 0.9, 1.0)
        self.assertEqual(papers.place((0.85, 0.5), published), "among them")
        self.assertEqual(papers.place((0.7, 0.04), published), "below them")
        self.assertEqual(papers.place((0.7, 0.06), published), "below them by less than two standard errors")
        self.assertEqual(papers.place((1.2, 0.05), published), "above them")
        self.assertIn("0.80 to 1.00; ours is below them.", papers.compare("x", (0.5, 0.01), published, "Table"))

    def test_shares_and_ratios(self):
        def pooled(*shares_and_counts):
            return scores.pooled_share([{"needle": share, "samples": count} for share, count in shares_and_counts],
                                       "needle", "samples")

        share, error = pooled((1.0, 5), (0.5, 10))
        self.assertAlmostEqual(share, 10 / 15)
        self.assertGreater(error, 0)
        self.assertGreater(pooled((1.0, 4))[1], 0.1)  # four hits of four are no certainty
        self.assertEqual(scores.ratio((2.0, 0.0), (4.0, 0.0)), (0.5, 0.0))
        self.assertTrue(math.isnan(scores.ratio((1.0, 0.1), (0.0, 0.0))[0]))

    def test_what_makes_a_sample_hard_cancels(self):
        hard = [10.0, 50.0, 30.0, 70.0]
        dense = scores.score_of({"repetition": 40.0, "repetition_stderr": 12.9, "score_samples": hard}, "repetition")
        half = scores.score_of({"repetition": 20.0, "repetition_stderr": 6.5,
                                "score_samples": [one / 2 for one in hard]}, "repetition")
        self.assertEqual(scores.ratio(half, dense), (0.5, 0.0))
        less = scores.Score(39.0, 12.9, [9.0, 49.0, 29.0, 69.5])
        self.assertTrue(scores.told_apart(less, dense))
        self.assertFalse(scores.told_apart((39.0, 12.9), (40.0, 12.9)), "other samples tell nothing")
        # By hand: the differences -1, -1, -1, -0.5 have the mean -0.875 and the standard error 0.125.
        self.assertAlmostEqual(scores.apart(scores.Score(39.125, 12.9, less.samples), dense), -7.0)
        nats = scores.score_of({"perplexity": 20.0, "perplexity_stderr": 1.0, "score_samples": [3.0, 2.9]}, "perplexity")
        self.assertEqual(nats.samples, (60.0, 58.0))
        # Ten needles of ten found by both: neither a ratio of exactly one, nor told from nine of ten.
        found = scores.pooled_share([{"needle": 1.0, "samples": 10, "score_samples": [1.0] * 10}], "needle", "samples")
        nine = scores.pooled_share([{"needle": 0.9, "samples": 10, "score_samples": [1.0] * 9 + [0.0]}], "needle", "samples")
        none = scores.pooled_share([{"needle": 0.0, "samples": 10, "score_samples": [0.0] * 10}], "needle", "samples")
        self.assertAlmostEqual(scores.ratio(found, found)[1], (2 / 11 / 12) ** 0.5)
        self.assertFalse(scores.told_apart(found, nine))
        self.assertTrue(scores.told_apart(found, none))

    def test_findings_follow_the_scores(self):
        def findings(change):
            ablations = sparq_ablations.Ablations.__new__(sparq_ablations.Ablations)
            ablations.channels, ablations.reallocate, ablations.estimates = 64, "on", {}
            ablations.scores = {options: (50.0, 2.0) for options in ablations.all_options()}
            change(ablations)
            return " ".join(sparq_ablations.findings(ablations))

        def lose_by_channels(ablations):
            ablations.scores[ablations.at_compression("1/8")] = (20.0, 2.0)

        def lose_by_tokens(ablations):
            lose_by_channels(ablations)
            ablations.scores[ablations.oracle_of_tokens("1/8")] = (21.0, 2.0)

        def mean_value_harms(ablations):
            ablations.scores[ablations.recipe(32, 128, "off")] = (70.0, 2.0)

        def gain_by_more_channels(ablations):
            lose_by_channels(ablations)
            ablations.scores[ablations.divided("13/16")] = (70.0, 2.0)

        self.assertIn("With 13/16 of 1/8 of the bytes for scores (rank=13, k_ratio=0.0234375)", findings(gain_by_more_channels))
        self.assertIn("no difference that can be told", findings(lambda ablations: None))
        self.assertIn("At 1/8 SparQ (50.0 ± 2.0) cannot be told from dense", findings(lambda ablations: None))
        self.assertIn("temperatures' scores cannot be told apart", findings(lambda ablations: None))
        self.assertIn("the choice by few channels is what it loses", findings(lose_by_channels))
        self.assertIn("it is the number of tokens that is missing", findings(lose_by_tokens))
        self.assertIn("the mean value harms", findings(mean_value_harms))

    def test_a_target_counts_only_where_the_controls_miss_it(self):
        def target(found, controls, least=True):
            shares = {name: (share, 0.1) for name, share in controls.items()}
            return methods.Target("m", "sparq", "needle", "what", least, 0.95 if least else 0.5, (found, 0.1), shares)

        self.assertEqual(target(0.97, {"random": 0.1, "local": 0.2}).verdict, "met")
        self.assertEqual(target(0.9, {"random": 0.1, "local": 0.2}).verdict, "**missed**")
        one = target(0.97, {"random": 0.1, "local": 0.96})
        self.assertEqual((one.verdict, one.met, one.counts), ("met, but so does local", True, False))
        self.assertEqual(target(0.97, {"random": 1.0, "local": 1.0}).verdict, "met, but so do random and local")
        self.assertEqual(target(0.1, {"random": 0.0}, least=False).verdict, "met, but so does random")
        self.assertEqual(target(0.1, {"random": 0.6}, least=False).verdict, "met")

    def test_what_swa_loses_follows_the_scores(self):
        class Asked:
            sparsities = ("0.5", "0.9")

            def __init__(self, swa):
                self.shares = {"swa": (swa, 0.04), "local": (0.05, 0.04), "dense": (0.8, 0.04)}

            def score(self, method, _=None):
                return self.shares[method]

            def attended(self, *_):
                return 0.14

        def losses(swa):
            results = methods.Results(methods.QUICK)
            for task, full in (("repetition", 90.0), ("needle", 1.0)):
                for method, share in (("dense", 1.0), ("swa", swa), ("local", 0.1)):
                    row = {"attention": method, "kv_dtype": "fp16", task: share * full, f"{task}_stderr": 0.01 * full}
                    results.rows[("m", task)].append(row | {"compression": 1 / 8, "length": 9, "samples": 50})
            return reasons.swa_losses(results, Asked(swa), "m")

        little = losses(0.0)
        self.assertIn("at 1/8 0.0 ± 0.9 (dense 90.0 ± 0.9, local 9.0 ± 0.9), less than a local window", little[0])
        self.assertTrue(all("lose" in one for one in little))
        self.assertIn("none answered", little[2])
        self.assertFalse(any("It loses" in one for one in losses(1.0)))

    def test_time_goes_where_it_is_left(self):
        budget = program.Budget(1000.0, {"a": 1, "b": 1})
        self.assertEqual(budget.count("a", (2, 16), 10, lambda count: 1), 16)  # a probe that takes no time
        over = program.Budget(0.0, {"a": 1, "b": 1})
        self.assertEqual(over.count("a", (2, 16), 10, lambda count: self.fail("no time for a probe")), 2)

    def test_any_first_pieces_of_held_out_text_lie_all_over_it(self):
        paragraphs = [f"Paragraph {n} of a long book. " * 5 for n in range(400)]
        pieces = pieces_of(paragraphs, 2000)
        self.assertEqual("".join(pieces), "".join(one + "\n" for one in paragraphs))
        order = spread(pieces)
        self.assertEqual(sorted(order), sorted(pieces))
        for first in (4, 8, 16):
            places = sorted(pieces.index(one) for one in order[:first])
            gaps = [after - before for before, after in zip(places, [*places[1:], len(pieces)])]
            self.assertLess(max(gaps), 2.5 * len(pieces) / first, (first, places))

    def test_prose_leaves_code_and_tables_out(self):
        words = "word " * 30
        text = f"# Title\n\n{words}`code` [link](there.md)\n\n```sh\n{words}\n```\n\n| {words} |\n"
        self.assertEqual(prose(text), [f"{words}code link"])


if __name__ == "__main__":
    unittest.main()
