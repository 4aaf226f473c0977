"""SparQ's ablations (its section 5.4 and Fig. 7) on the repetition task: oracle, temperatures, rank and k."""

from accuracy.markdown import bullets, percent, share_of, table, with_error
from accuracy.scores import score_of, told_apart

COMPRESSIONS = ("1/2", "1/4", "1/8")
TEMPERATURES = ("coverage", "head_dim", "rank")
TEMPERATURE_NAMES = {"coverage": "eq. 9", "head_dim": "sqrt(head dimension)", "rank": "sqrt(rank)"}
TOKENS = (32, 64, 128, 256)
# Of 1/8 of the bytes, the share that scores take; the rest reads the chosen tokens.
DIVIDED = "1/8"
DIVISIONS = ("1/2", "5/8", "3/4", "13/16")


class Ablations:
    """Scores of one model, each set of options measured once."""

    def __init__(self, program, model):
        self.program = program
        self.model = model
        self.channels = program.channels(model)
        config = program.config(model)
        # The paper's choice: mean-value reallocation for MHA alone.
        self.reallocate = "on" if config["num_key_value_heads"] == config["num_attention_heads"] else "off"
        self.count = 0
        self.scores = {}
        self.estimates = {}

    @property
    def ranks(self):
        return tuple(self.channels // part for part in (8, 4, 2))

    @property
    def recipes(self):
        """(rank, k) pairs that temperatures are compared for."""
        return ((self.channels // 2, 128), (self.channels // 4, 64))

    def all_options(self):
        options = [()]
        for one in COMPRESSIONS:
            options += [self.at_compression(one), self.oracle_of_tokens(one), self.oracle_of_bytes(one)]
        for rank, k in self.recipes:
            options += [self.recipe(rank, k, "on", temperature) for temperature in TEMPERATURES]
            options.append(self.recipe(rank, k, "off"))
        options += [self.divided(one) for one in DIVISIONS]
        options += [self.recipe(rank, k) for rank in self.ranks for k in TOKENS]
        return list(dict.fromkeys(options))

    def recipe(self, rank, k, reallocate=None, temperature="coverage"):
        return (f"rank={rank}", f"k={k}", f"reallocate={reallocate or self.reallocate}", f"temperature={temperature}")

    def at_compression(self, compression):
        """As `triphase eval --compression` divides the bytes: half for scores, more where that is fewer than 16 channels."""
        share = share_of(compression)
        most = int(2 * self.channels * share * 13 / 16)
        return self.with_rank(share, round(max(self.channels * share, min(16, most))))

    def divided(self, for_scores):
        share, scores = share_of(DIVIDED), share_of(for_scores)
        return self.with_rank(share, round(2 * self.channels * share * scores))

    def with_rank(self, share, rank):
        """Bytes are those of `rank` of the head's channels of every key, and of k keys and values."""
        return (f"rank={rank}", f"k_ratio={share - rank / (2 * self.channels)}")

    def oracle_of_tokens(self, compression):
        """As many tokens, chosen by the exact scores (all channels)."""
        return (f"rank={self.channels}", self.at_compression(compression)[1])

    def oracle_of_bytes(self, compression):
        """All of the bytes spent on tokens, chosen by exact scores that cost nothing: Fig. 7a's oracle."""
        return (f"rank={self.channels}", f"k_ratio={share_of(compression)}")

    @staticmethod
    def arguments(options):
        return ("--attention", "sparq" if options else "dense",
                *(word for one in options for word in ("--attention-option", f"sparq.{one}")))

    def evaluate(self, options, count):
        return score_of(self.program.eval(self.model, "repetition", count, *self.arguments(options))[0], "repetition")

    def measure(self, budget, limits):
        options = self.all_options()

        def probe(count):
            self.evaluate(self.recipe(*self.recipes[0]), count)
            return 1

        # Estimates of the coverage go through every decoded row of a window: about a tenth on top.
        self.count = budget.count((self.model, "ablations"), limits, 1.1 * len(options), probe)
        for one in options:
            self.scores[one] = self.evaluate(one, self.count)
        for temperature in TEMPERATURES:
            chosen = self.recipe(*self.recipes[0], "on", temperature)
            rows = self.program.eval(self.model, "attention", 1, *self.arguments(chosen))
            self.estimates[temperature] = next(row for row in rows if row["layer"] == "all")

    def cell(self, options):
        return with_error(*self.scores[options], 1)


def findings(ablations):
    """What the numbers say, each sentence chosen by them."""
    scores = ablations.scores
    dense = scores[()]
    sentences = []
    for one in COMPRESSIONS:
        sparq, oracle = scores[ablations.at_compression(one)], scores[ablations.oracle_of_tokens(one)]
        if told_apart(sparq, dense) and sparq[0] < dense[0]:
            if told_apart(oracle, sparq) and oracle[0] > sparq[0]:
                why = "exact scores with as many tokens do better, so that the choice by few channels is what it loses"
            elif told_apart(oracle, dense):
                why = "exact scores with as many tokens fall short of dense too, so that it is the number of tokens that is missing"
            else:
                why = "with these errors exact scores with as many tokens can be told from neither"
            sentences.append(f"At {one} SparQ repeats {with_error(*sparq, 1)} characters of dense attention's "
                             f"{with_error(*dense, 1)}: {why} ({with_error(*oracle, 1)}).")
        elif not told_apart(sparq, dense):
            sentences.append(f"At {one} SparQ ({with_error(*sparq, 1)}) cannot be told from dense attention "
                             f"({with_error(*dense, 1)}). Exact scores with as many tokens give {with_error(*oracle, 1)}.")
    division = max(DIVISIONS, key=lambda one: scores[ablations.divided(one)][0])
    options, even = ablations.divided(division), ablations.divided(DIVISIONS[0])
    if told_apart(scores[options], scores[even]):
        sentences.append(f"With {division} of {DIVIDED} of the bytes for scores ({', '.join(options)}) instead of {DIVISIONS[0]}, "
                         f"SparQ repeats {with_error(*scores[options], 1)}. So small a head lacks channels, not tokens.")
    else:
        sentences.append(f"How {DIVIDED} of the bytes is divided between scores and tokens makes no difference that can be told.")
    for rank, k in ablations.recipes:
        tried = {temperature: scores[ablations.recipe(rank, k, "on", temperature)] for temperature in TEMPERATURES}
        best = max(tried, key=lambda name: tried[name][0])
        off = scores[ablations.recipe(rank, k, "off")]
        coverage = tried["coverage"]
        named = f"rank {rank}, k {k}"
        worse = [TEMPERATURE_NAMES[name] for name in TEMPERATURES
                 if told_apart(tried[best], tried[name]) and tried[name][0] < tried[best][0]]
        if worse:
            sentences.append(f"{named}: {TEMPERATURE_NAMES[best]} scores highest, {with_error(*tried[best], 1)}, told apart "
                             f"from {' and '.join(worse)}; in the paper eq. 9's temperature does.")
        else:
            sentences.append(f"{named}: the temperatures' scores cannot be told apart.")
        if told_apart(coverage, off):
            sentences.append(f"{named}: the mean value {'helps' if coverage[0] > off[0] else 'harms'}: "
                             f"{with_error(*coverage, 1)} with it, {with_error(*off, 1)} without.")
        else:
            sentences.append(f"{named}: the scores with and without the mean value cannot be told apart.")
    errors = {name: row["coverage_error"] for name, row in ablations.estimates.items()}
    if errors and all(error is not None for error in errors.values()):
        closest = min(errors, key=errors.get)
        sentences.append(f"The coverage is estimated most closely with {TEMPERATURE_NAMES[closest]} "
                         f"(mean distance {errors[closest]:.3f}); eq. 9: {errors['coverage']:.3f}. "
                         + ("The paper finds eq. 9's closest as well." if closest == "coverage" else
                            "In the paper eq. 9's is closest."))
    return sentences


def section(ablations):
    channels = ablations.channels
    dense = ablations.cell(())
    out = [f"### {ablations.model}: SparQ's ablations, as in its Fig. 7\n",
           f"Characters repeated, {ablations.count} samples; dense attention: {dense}. {channels} channels; mean-value "
           f"reallocation is {ablations.reallocate} where not named. The paper's random low-rank projection is not offered.\n"]
    rows = [["SparQ", *(ablations.cell(ablations.at_compression(one)) for one in COMPRESSIONS)],
            ["exact scores, as many tokens", *(ablations.cell(ablations.oracle_of_tokens(one)) for one in COMPRESSIONS)],
            ["exact scores for nothing, all bytes for tokens", *(ablations.cell(ablations.oracle_of_bytes(one))
                                                               for one in COMPRESSIONS)]]
    out.append(table(["Fig. 7a", *COMPRESSIONS], rows))
    rows = [[f"rank {rank}, k {k}", *(ablations.cell(ablations.recipe(rank, k, "on", temperature)) for temperature in TEMPERATURES),
             ablations.cell(ablations.recipe(rank, k, "off"))] for rank, k in ablations.recipes]
    estimates = [ablations.estimates[temperature] for temperature in TEMPERATURES]
    if all(row["coverage_error"] is not None for row in estimates):
        rank, k = ablations.recipes[0]
        rows.append([f"rank {rank}, k {k}: coverage, and its estimate's mean error (Fig. 4f)",
                     *(f"{percent(row['coverage'], row['coverage_stderr'])}; {row['coverage_error']:.3f}" for row in estimates), ""])
    out.append(table(["Fig. 7b: temperature", *TEMPERATURE_NAMES.values(), "no mean value"], rows))
    rows = [["SparQ", *(ablations.cell(ablations.divided(one)) for one in DIVISIONS)]]
    out.append(table([f"{DIVIDED} of the bytes, of which for scores", *DIVISIONS], rows))
    rows = [[f"rank {rank}", *(ablations.cell(ablations.recipe(rank, k)) for k in TOKENS)] for rank in ablations.ranks]
    out.append(table(["Fig. 7c", *(f"k {k}" for k in TOKENS)], rows))
    out.append(bullets(findings(ablations)))
    return "\n".join(out)
