"""Questions about a fixed context, in the manner of PreFixQA: Squeezed Attention beside the other methods."""

from accuracy.markdown import bullets, percent, table
from accuracy.methods import CHOOSE_EXACTLY, EXACT
from accuracy.papers import SQUEEZED_PREFIXQA, compare
from accuracy.scores import pooled_share, ratio, told_apart
from make_fixed_context_questions import make_document, question_lines

FACTS = 24  # a document, as many as PreFixQA has on average
BEHIND = 110  # tokens: the longest question and its answer
CENTROIDS = {"5 %": ("0.05", "0.01"), "20 %": ("0.2", "0.04")}  # of the tokens: clusters, groups
USUAL_CENTROIDS = "5 %"
DENSE_PROMPTS = "squeezed, one level, 5 % centroids, questions attend densely"
LEVELS = (1, 2)
OTHERS = ("sparq", "quest", "swa", "h2o", "lm-infinite", "local", "random")


class Questions:
    """Scores of one model over several documents."""

    def __init__(self, program, model, sparsities):
        self.program = program
        self.model = model
        self.sparsities = sparsities
        self.documents = 0
        self.tokens = []
        self.rows = {}  # (method, sparsity, centroids, levels) -> rows, one for each document

    @property
    def cells(self):
        return 1 + len(self.sparsities) * (len(CENTROIDS) * (1 + len(LEVELS)) + 2 + len(OTHERS))

    def make_document(self, seed):
        """(context, questions) files; the context fills the model's context but for a question."""
        room = self.program.config(self.model)["max_position_embeddings"] - BEHIND
        characters = 3 * room
        for _ in range(6):
            context, facts = make_document(self.program.text, characters, FACTS, seed)
            tokens = self.program.count_tokens(self.model, context) + 1
            if 0.97 * room <= tokens <= room:
                break
            characters = int(characters * 0.985 * room / tokens)
        self.tokens.append(tokens)
        context_path = self.program.folder / f"context-{seed}.txt"
        questions_path = self.program.folder / f"questions-{seed}.jsonl"
        context_path.write_text(context, encoding="utf-8")
        questions_path.write_text(question_lines(facts), encoding="utf-8")
        return context_path, questions_path

    def cluster(self, context, sparsity, centroids):
        fine, coarse = CENTROIDS[centroids]
        folder = self.program.folder / f"clusters-{self.model}-{centroids.split()[0]}-{sparsity}"
        self.program.call("cluster", self.model, "--context", context, "--output", folder, "--sparsity", sparsity,
                          "--centroids", fine, "--coarse-centroids", coarse)
        return folder

    def ask(self, key, questions, clusters, *arguments):
        for row in self.program.eval(self.model, "exact-match", 1, "--data", questions, "--fixed-context", clusters,
                                     "--max-tokens", 10, "--stop", ".", *arguments):
            self.rows.setdefault(key(row), []).append(row)
        return row

    def ask_document(self, seed):
        context, questions = self.make_document(seed)
        begun = False
        for sparsity in self.sparsities:
            for centroids in CENTROIDS:
                clusters = self.cluster(context, sparsity, centroids)
                if not begun:
                    self.ask(lambda row: ("dense",), questions, clusters, "--attention", "dense")
                    begun = True
                for levels in LEVELS:
                    row = self.ask(lambda row, of=("squeezed", sparsity, centroids, levels): of, questions, clusters,
                                   "--attention", "squeezed", "--attention-option", f"squeezed.levels={levels}")
                    if centroids == USUAL_CENTROIDS and levels == 1:
                        attended = row["tokens_attended"]
                        self.ask(lambda row, of=(DENSE_PROMPTS, sparsity): of, questions, clusters, "--attention",
                                 "squeezed", "--attention-option", "squeezed.prefill=dense")
            same_share = ("--kv-sparsity", f"{min(0.999, 1 - attended):.4f}")
            self.ask(lambda row, of=sparsity: (row["attention"], of), questions, clusters, "--attention",
                     ",".join(OTHERS), *same_share, "--attention-option", "quest.dense_layers=0")
            self.ask(lambda row, of=sparsity: (EXACT, of), questions, clusters, "--attention", "sparq", *same_share,
                     *CHOOSE_EXACTLY)

    def measure(self, budget, limits):
        def probe(_):
            self.ask_document(0)
            return self.cells

        self.documents = budget.count((self.model, "questions"), limits, self.cells, probe)
        for seed in range(1 if self.rows else 0, self.documents):
            self.ask_document(seed)

    def score(self, *key):
        return pooled_share(self.rows[key], "exact_match", "lines")

    def attended(self, *key):
        rows = self.rows[key]
        return sum(row["tokens_attended"] for row in rows) / len(rows)


def findings(questions):
    sentences = []
    dense = questions.score("dense")
    for sparsity, levels in [(one, level) for one in questions.sparsities for level in LEVELS]:
        published = SQUEEZED_PREFIXQA.get((sparsity, levels))
        score = questions.score("squeezed", sparsity, USUAL_CENTROIDS, levels)
        named = f"{'One level' if levels == 1 else 'Two levels'}, {USUAL_CENTROIDS} centroids, sparsity {sparsity}"
        if published and dense[0]:
            sentences.append(compare(named, ratio(score, dense), published, "PreFixQA"))
        if not (told_apart(score, dense) and score[0] < dense[0]):
            continue
        exact = questions.score(EXACT, sparsity)
        more = questions.score("squeezed", sparsity, "20 %", levels)
        if told_apart(exact, score) and exact[0] > score[0]:
            sentences.append(f"{named}: {percent(*score)} of the questions, where as many tokens chosen by exact scores "
                             f"answer {percent(*exact)}: it is the choice by clusters that loses.")
        else:
            sentences.append(f"{named}: {percent(*score)} of the questions; as many tokens chosen by exact scores answer "
                             f"{percent(*exact)}, which is no better within the errors.")
        prompts = questions.score(DENSE_PROMPTS, sparsity)
        if levels == 1 and told_apart(prompts, score):
            sentences.append(f"{named}: with questions that attend densely {percent(*prompts)} are answered.")
        if told_apart(more, score):
            sentences.append(f"With 20 % centroids {'more' if more[0] > score[0] else 'fewer'} are answered: {percent(*more)}.")
    return sentences


def section(questions):
    dense = questions.score("dense")
    lines = sum(row["lines"] for row in questions.rows[("dense",)])
    out = [f"### {questions.model}: questions about a fixed context, in the manner of PreFixQA\n",
           f"{questions.documents} documents of {min(questions.tokens)} to {max(questions.tokens)} tokens, {lines} questions "
           "about facts hidden in them (tools/lab/make_fixed_context_questions.py). Share answered exactly, and in brackets the "
           "tokens that decode steps attended, the context's last 100, question and answer among them. The methods below "
           "squeezed have its KV sparsity in the same column and document, with one level and 5 % centroids. "
           f"Dense attention answers {percent(*dense)}. Sparsity is the quantile that the threshold was "
           "calibrated for.\n"]

    def cell(*key):
        return f"{percent(*questions.score(*key))} ({100 * questions.attended(*key):.0f} %)"

    rows = [[f"squeezed, {'one level' if levels == 1 else 'two levels'}, {centroids} centroids",
             *(cell("squeezed", sparsity, centroids, levels) for sparsity in questions.sparsities)]
            for centroids in CENTROIDS for levels in LEVELS]
    rows.append([DENSE_PROMPTS, *(cell(DENSE_PROMPTS, sparsity) for sparsity in questions.sparsities)])
    for method in (EXACT, *OTHERS):
        rows.append([method, *(cell(method, sparsity) for sparsity in questions.sparsities)])
    out.append(table(["sparsity", *questions.sparsities], rows))
    sentences = findings(questions)
    if sentences:
        out.append(bullets(sentences))
    return "\n".join(out)
