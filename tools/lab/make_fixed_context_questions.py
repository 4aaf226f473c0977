#!/usr/bin/env python3
"""Makes a fixed context with facts hidden in it, and questions about them, in the manner of PreFixQA.

    tools/lab/make_fixed_context_questions.py --text novel.txt --context context.txt --questions questions.jsonl
    triphase cluster --model DIR --context context.txt --output clusters/
    triphase eval --model DIR --task exact-match --data questions.jsonl --fixed-context clusters/ --stop . \\
                  --attention dense,squeezed

Many questions about one long text: that is what a fixed context is for. The text is cut into sentences; between
them stand facts about invented names, in the forms that the shipped models were trained on ("The secret code of
Dramor is 84213."), evenly spread. A line of the questions ends where the value follows, so that the answer has to
be found in the context. Without --text the prose of this project's documents is used. The same options give the
same files. Standard library only.
"""

import argparse
import json
import math
import pathlib
import random
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "train_test_model"))

from accuracy.texts import held_out_text  # noqa: E402
from facts import CODAS, FACTS, ONSETS, VOWELS, Fact  # noqa: E402

# Of text behind the last fact: squeezed attention always attends a context's last 100 tokens.
TAIL_CHARACTERS = 500


def invented_name(draw):
    syllables = "".join(draw.choice(ONSETS) + draw.choice(VOWELS) for _ in range(draw.randint(1, 2)))
    return (syllables + draw.choice(VOWELS) + draw.choice(CODAS)).capitalize()


def make_facts(draw, count, forms):
    """`count` facts, the forms by turns. No name begins with another: they would be hard to tell apart."""
    facts, names = [], []
    while len(facts) < count:
        name = invented_name(draw)
        if any(name.startswith(one) or one.startswith(name) for one in names):
            continue
        names.append(name)
        value = "".join(draw.choice("0123456789") for _ in range(draw.randint(4, 6)))
        facts.append(Fact.of(FACTS[len(facts) % forms], name, value))
    return facts


def sentences_of(text):
    return [one for one in re.split(r"(?<=[.!?])\s+", " ".join(text.split())) if one]


def make_document(text, characters, count, seed, forms=len(FACTS)):
    """(context, facts): about so many characters of text and facts, the text from a place that the seed draws."""
    draw = random.Random(seed)
    facts = make_facts(draw, count, forms)
    room = characters - sum(len(fact.statement) + 1 for fact in facts)
    sentences = sentences_of(text)
    at = draw.randrange(len(sentences))
    chosen, length = [], 0
    for step in range(len(sentences)):
        sentence = sentences[(at + step) % len(sentences)]
        if length + len(sentence) > room:
            break
        chosen.append(sentence)
        length += len(sentence) + 1
    left = length
    open_places = 0  # sentences with enough text behind them to have facts in front
    for sentence in chosen:
        open_places += left >= TAIL_CHARACTERS
        left -= len(sentence) + 1
    if open_places < 2:
        raise SystemExit(f"--characters: found {characters}, expected at least "
                         f"{characters - room + 2 * TAIL_CHARACTERS} for {count} facts and text around them")
    order = draw.sample(facts, len(facts))
    pieces = []
    for index, sentence in enumerate(chosen):
        due = min(len(facts), math.ceil((index + 1) * len(facts) / open_places))
        pieces += [fact.statement for fact in order[min(len(facts), math.ceil(index * len(facts) / open_places)):due]]
        pieces.append(sentence)
    return " ".join(pieces), facts


def question_lines(facts):
    return "".join(json.dumps({"prompt": fact.prompt(), "answer": fact.value}) + "\n" for fact in facts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", help="UTF-8 text that hides the facts. Default: this project's documents")
    parser.add_argument("--characters", type=int, default=4500, help="length of the context (default 4500)")
    parser.add_argument("--facts", type=int, default=24, help="facts, each asked for once (default 24)")
    parser.add_argument("--forms", type=int, default=len(FACTS), choices=range(1, len(FACTS) + 1),
                        help="kinds of statements, by turns (default all)")
    parser.add_argument("--seed", type=int, default=0, help="of names, values and the text's beginning (default 0)")
    parser.add_argument("--context", required=True, help="text file for triphase cluster --context")
    parser.add_argument("--questions", required=True, help="JSONL file for triphase eval --data")
    arguments = parser.parse_args()
    text = pathlib.Path(arguments.text).read_text(encoding="utf-8") if arguments.text else held_out_text()
    context, facts = make_document(text, arguments.characters, arguments.facts, arguments.seed, arguments.forms)
    pathlib.Path(arguments.context).write_text(context, encoding="utf-8")
    pathlib.Path(arguments.questions).write_text(question_lines(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
