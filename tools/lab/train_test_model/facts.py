"""The facts that the models are trained to look up: invented names and statements about them."""

from __future__ import annotations

from dataclasses import dataclass

ONSETS = "b br c ch d dr f fl g gr h j k l m n p qu r s sh st t th tr v w z".split()
VOWELS = "a e i o u ai ea o a e".split()
CODAS = "n r l s m x th ck nd rt ll d g b".split()

FACTS = (
    ("The secret code of {name} is {value}.", "What is the secret code of {name}?"),
    ("The key number of {name} is {value}.", "What is the key number of {name}?"),
    ("The house of {name} has the number {value}.", "Which number has the house of {name}?"),
    ("The servant of {name} paid {value}.", "How much did the servant of {name} pay?"),
)
QUESTION = "Question: {question} Answer: {answer}"


@dataclass(frozen=True)
class Fact:
    """A statement about an invented name, and the question that asks for its value."""

    statement: str
    question: str
    value: str

    @staticmethod
    def of(form: tuple[str, str], name: str, value: str) -> Fact:
        """The form is one of FACTS."""
        return Fact(form[0].format(name=name, value=value), form[1].format(name=name), value)

    def lead(self) -> str:
        """The statement up to its value."""
        return self.statement[: self.statement.index(self.value)].rstrip()

    def prompt(self) -> str:
        """The question, up to where the value follows."""
        return QUESTION.format(question=self.question, answer=self.lead())
