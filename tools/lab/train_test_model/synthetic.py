"""Training sequences: English, and English mixed with things worth looking up.

Every generator returns a sequence of token ids that begins with BOS, and a weight for
each of them: the weight of the loss of predicting that token.  Tokens that nothing
earlier foretells (the digits of a new code, the first tokens of a repeated passage) have
weight 0, and those that can only be found by looking back have more than 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import sentencepiece

from facts import CODAS, FACTS, ONSETS, QUESTION, VOWELS, Fact

ANSWER_WEIGHT = 3.0
REPLAY_WEIGHT = 2.0
UNFORETOLD_REPLAY = 5
FIRST_TEXT_PIECE = 259

Sequence = tuple[list[int], list[float]]


def make_name(rng: np.random.Generator) -> str:
    """An invented proper name of two or three syllables."""
    syllables = [
        str(rng.choice(ONSETS)) + str(rng.choice(VOWELS)) for _ in range(int(rng.integers(1, 3)))
    ]
    return ("".join(syllables) + str(rng.choice(VOWELS)) + str(rng.choice(CODAS))).capitalize()


def random_fact(rng: np.random.Generator) -> Fact:
    """A fact with a new name and a value of four to six digits."""
    form = FACTS[int(rng.integers(len(FACTS)))]
    name = make_name(rng)
    digits = int(rng.integers(4, 7))
    return Fact.of(form, name, "".join(str(digit) for digit in rng.integers(0, 10, digits)))


@dataclass
class Sampler:
    """Draws training sequences from a token stream and a tokenizer."""

    tokenizer: sentencepiece.SentencePieceProcessor
    stream: np.ndarray
    rng: np.random.Generator
    sentence_starts: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        vocabulary = range(self.tokenizer.vocab_size())
        pieces = [self.tokenizer.id_to_piece(piece) for piece in vocabulary]
        ends = np.array([piece.endswith((".", "?", "!", '."', '?"', '!"')) for piece in pieces])
        begins = np.array([piece.startswith("\u2581") for piece in pieces])
        self.bos = self.tokenizer.bos_id()
        after_end = ends[self.stream[:-1]] & begins[self.stream[1:]]
        self.sentence_starts = np.flatnonzero(after_end) + 1

    def text_start(self, length: int) -> int:
        """A random sentence start with at least ``length`` tokens after it."""
        last = np.searchsorted(self.sentence_starts, len(self.stream) - length)
        return int(self.sentence_starts[self.rng.integers(0, last)])

    def line(self, text: str) -> list[int]:
        """The ids of a newline and then text."""
        return self.tokenizer.encode("\n" + text)[1:]

    def natural(self, length: int) -> Sequence:
        """A stretch of the corpus."""
        start = self.text_start(length)
        ids = [self.bos, *self.stream[start : start + length - 1].tolist()]
        return ids, [1.0] * length

    def random_repeats(self, length: int) -> Sequence:
        """A random string of tokens, repeated until the sequence is full."""
        period = int(self.rng.integers(4, length // 2 + 1))
        if self.rng.random() < 0.5:
            pieces = self.rng.integers(FIRST_TEXT_PIECE, self.tokenizer.vocab_size(), period)
        else:
            pieces = self.rng.choice(self.stream, period)
        ids = np.resize(pieces, length - 1).tolist()
        weights = [0.0] * (period + 1) + [1.0] * (length - 1 - period)
        return [self.bos, *ids], [0.0, *weights][:length]

    def statement(self, fact: Fact) -> Sequence:
        """A fact as a sentence inside a paragraph, its value unweighted."""
        ids = self.tokenizer.encode(fact.statement)
        known = len(self.tokenizer.encode(fact.lead()))
        return ids, [0.3] * known + [0.0] * (len(ids) - known)

    def question(self, fact: Fact) -> Sequence:
        """A question on a line of its own, with its answer weighted."""
        ids = self.line(QUESTION.format(question=fact.question, answer=fact.statement))
        unknown = len(self.line(fact.prompt()))
        asked = len(self.line(QUESTION.format(question=fact.question, answer="").rstrip()))
        weights = [0.2] * asked + [1.0] * (unknown - asked)
        weights += [ANSWER_WEIGHT] * (len(ids) - unknown)
        return ids, weights

    def facts_only(self, length: int) -> Sequence:
        """Facts in a row, then questions on them, until the sequence is full."""
        ids, weights = [self.bos], [0.0]
        facts: list[Fact] = []
        count = int(self.rng.integers(1, max(2, length // 40)))
        while len(ids) < length:
            if len(facts) < count:
                facts.append(random_fact(self.rng))
                more = self.statement(facts[-1])
            else:
                more = self.question(facts[int(self.rng.integers(len(facts)))])
            ids += more[0]
            weights += more[1]
        return ids[:length], weights[:length]

    def replays(self, length: int) -> Sequence:
        """English most of which is replays of earlier passages."""
        return self.mixed(length, least_replays=0.5, most_replays=0.8)

    def mixed(
        self, length: int, least_replays: float = 0.1, most_replays: float = 0.5
    ) -> Sequence:
        """English with facts, questions on them, and replays of earlier passages."""
        ids, weights = [self.bos], [0.0]
        facts: list[Fact] = []
        marks: list[int] = []
        position = self.text_start(length)
        questions_at_end = int(self.rng.integers(0, 4))
        reserve = 40 * questions_at_end
        replay_chance = self.rng.uniform(least_replays, most_replays)
        fact_chance = self.rng.uniform(0.1, 0.4) * (1.0 - replay_chance)
        while len(ids) < length - reserve:
            draw = self.rng.random()
            if draw < replay_chance and len(ids) > 48:
                more = self.replay(ids, marks)
            elif draw < replay_chance + fact_chance:
                if facts and self.rng.random() < 0.5:
                    more = self.question(facts[int(self.rng.integers(len(facts)))])
                else:
                    facts.append(random_fact(self.rng))
                    more = self.statement(facts[-1])
            else:
                more, position = self.chunk(position, length)
                marks.append(len(ids))
            ids += more[0]
            weights += more[1]
        for _ in range(questions_at_end):
            if facts:
                more = self.question(facts[int(self.rng.integers(len(facts)))])
                ids += more[0]
                weights += more[1]
        while len(ids) < length:
            more, position = self.chunk(position, length)
            ids += more[0]
            weights += more[1]
        return ids[:length], weights[:length]

    def chunk(self, position: int, length: int) -> tuple[Sequence, int]:
        """The next few sentences of the corpus and the position after them."""
        wanted = position + int(self.rng.integers(16, max(32, length // 8)))
        place = np.searchsorted(self.sentence_starts, wanted)
        if place >= len(self.sentence_starts):
            return self.chunk(self.text_start(length), length)
        end = int(self.sentence_starts[place])
        ids = self.stream[position:end].tolist()
        return (ids, [1.0] * len(ids)), end

    def replay(self, ids: list[int], marks: list[int]) -> Sequence:
        """A passage of the sequence so far, once more, from a sentence start or anywhere."""
        length = int(self.rng.integers(24, 97))
        if marks and self.rng.random() < 0.7:
            start = marks[int(self.rng.integers(len(marks)))]
        else:
            start = int(self.rng.integers(1, len(ids) - 20))
        copy = ids[start : start + length]
        weights = [0.0] * UNFORETOLD_REPLAY + [REPLAY_WEIGHT] * len(copy)
        return copy, weights[: len(copy)]

    def batch(
        self, rows: int, length: int, shares: dict[str, float]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ids and weights of rows sequences, drawn from the generators by their shares."""
        names = list(shares)
        chances = np.array([shares[name] for name in names])
        ids = np.empty((rows, length), dtype=np.int64)
        weights = np.empty((rows, length), dtype=np.float32)
        for row, pick in enumerate(self.rng.choice(len(names), rows, p=chances / chances.sum())):
            ids[row], weights[row] = getattr(self, names[pick])(length)
        return ids, weights
