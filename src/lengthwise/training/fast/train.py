"""Trains the fast predictor on pairs of prompts and LLMs of any sources, and calibrates it.

The loss is the likelihood of every sample, sample mean and std, the order of answers to prompts of one kind, and the
distance to the outputs of a teacher; of a ranker it is the order alone (ListMLE), and lengths are fitted to its scores
afterwards. Outside CASTILLO, an answer's log length has a level of its kind and LLM, which is
learned beside the network and dropped: what remains is what the prompt says. The spread is learned without the levels,
so that it includes what is unknown about a new source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lengthwise.errors import InputError
from lengthwise.llm_names import identify
from lengthwise.predictors.calibration import Calibration, fit_calibration
from lengthwise.predictors.contract import LogTPredictions
from lengthwise.predictors.encoder import EncoderPredictor
from lengthwise.predictors.fast import (
    CLIP,
    COUNTED,
    FEATURES,
    OUTPUTS,
    SIGMA_AT_ZERO,
    STD_BELOW_MEAN,
    FastNetwork,
    FastPredictor,
    WordTables,
)
from lengthwise.training.data import load_samples
from lengthwise.training.encoder.config import DataConfig
from lengthwise.training.encoder.losses import make_targets, negative_log_likelihood, student_logpdf
from lengthwise.training.encoder.pack import MADE, MADE_WEIGHT
from lengthwise.training.fast.word_tables import FOLDS, Vocabulary, learn_tables
from lengthwise.training.pairs import PairTable, coverage_90, score_pairs
from lengthwise.training.small_network import Recipe, arrays, standardise, train_network
from lengthwise.training.stated_rows import made_samples
from lengthwise.workloads.datasets import CASTILLO_GROUPS, load_diverse

_QUARTILES: Final = (-0.7, 0.0, 0.7)
"""Points of a teacher's prediction used as targets, in its sigmas: about its quartiles and its median."""
_ORDERED: Final = 384
_MIN_GAP: Final = 0.2  # of two log lengths: closer ones have no order
_ORDER_SCALE: Final = 0.25


@dataclass(frozen=True, eq=False)
class Examples:
    """P prompts, L LLMs, N pairs of both with up to K answers. A pair without lengths is learned from the teacher only.

    Pairs are sorted by `prompt`. `lengths` (N, K) are 0 where missing, `censored` marks capped answers. `soft` (N, 4)
    is the output of a teacher: log median, log sigma, log mean and log std, NaN where there is none. `levels` is the
    usual log length of each LLM, `identity` the number of its identity row, -1 if it is trained as an unknown one.
    """

    description: Floats
    prompt: NDArray[np.intp]
    llm: NDArray[np.intp]
    lengths: NDArray[Any]
    censored: NDArray[np.bool_]
    soft: Floats
    weight: NDArray[np.float64]
    name_features: Floats
    levels: NDArray[np.float64]
    identity: NDArray[np.intp]
    plain: slice = field(default_factory=lambda: slice(0))
    """Columns of the description that are not standardised: most prompts have 0 there."""
    kind: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))
    """(P): the kind of each prompt, whose answers have levels; -1 for one without levels."""
    absent: Sequence[NDArray[np.bool_]] = ()
    """For each network in turn, the prompts that it is not trained on; () for none."""
    place: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """(N): log mean length above the level of the LLM, or of LLM and kind; what a ranker learns the order of."""


@dataclass(frozen=True)
class FastRecipe(Recipe):
    """Hyperparameters, chosen on held-out training prompts."""

    dropout: float = 0.3
    input_dropout: float = 0.1
    epochs: int = 10
    rate: float = 3e-3
    decay: float = 0.05
    joint: int = 96
    identity: int = 24
    unknown: float = 0.1
    soft_weight: float = 1.0
    order_weight: float = 0.5
    level_prior: float = 0.01
    """Weight of the squared levels of kinds."""
    networks: int = 4
    ranker: Literal["", "all", "kind"] = ""
    """Train for the order alone, by ListMLE as LTR (arXiv 2408.15792): of all prompts, or of those of one kind."""


def fit_network(examples: Examples, recipe: FastRecipe, seed: int) -> FastNetwork:
    """Train networks from different seeds, each without its `absent` prompts; return the one that averages them."""
    inputs, scale = standardise(examples.description, CLIP, examples.plain)
    x, names = torch.from_numpy(inputs), torch.from_numpy(examples.name_features)
    lengths, soft, levels, weight = (
        torch.from_numpy(np.asarray(column, np.float32))
        for column in (examples.lengths, examples.soft, examples.levels, examples.weight)
    )
    llm, censored = torch.from_numpy(examples.llm), torch.from_numpy(examples.censored)
    known = int(examples.identity.max()) + 1
    identity = torch.from_numpy(np.where(examples.identity < 0, known, examples.identity))
    start = torch.from_numpy(np.searchsorted(examples.prompt, np.arange(len(x) + 1)))
    kind = torch.from_numpy(examples.kind if len(examples.kind) else np.full(len(x), -1))
    place = torch.from_numpy(np.asarray(examples.place if recipe.ranker else np.zeros(len(llm)), np.float32))
    networks = []
    for number in range(seed * recipe.networks, (seed + 1) * recipe.networks):
        torch.manual_seed(number)
        net = _Net(x.shape[1], known, names.shape[1], recipe, kinds=int(kind.max()) + 1, llms=len(examples.levels))

        def loss(rows: Any, net: _Net = net) -> Any:
            count = start[rows + 1] - start[rows]
            owner = torch.repeat_interleave(torch.arange(len(rows)), count)
            first = torch.cumsum(count, 0) - count
            at = start[rows][owner] + torch.arange(len(owner)) - first[owner]
            at_llm, chance = llm[at], torch.rand(len(at))
            row = torch.where(chance < recipe.unknown, known, identity[at_llm])
            # The name of an unknown LLM may state neither family nor size.
            features = torch.where((chance < recipe.unknown / 2)[:, None], names[-1], names[at_llm])
            outputs = net(x[rows], owner, row, features)
            at_kind = kind[rows][owner]
            if recipe.ranker:
                return list_loss(outputs[..., 0], place[at], at_kind, owner, weight[at])
            kind_level = net.kind_levels(at_kind, at_llm)
            answers = _Answers(
                lengths[at], censored[at], soft[at], weight[at], levels[at_llm], kind_level, at_kind, owner
            )
            return _loss(outputs, answers, recipe) + recipe.level_prior * (net.kind_level.weight**2).mean()

        left_out = examples.absent[number % len(examples.absent)] if examples.absent else np.zeros(len(x), bool)
        train_network(net, torch.from_numpy(np.flatnonzero(~left_out)), loss, recipe)
        networks.append(FastNetwork.of({**scale, **net.arrays()}))
    return FastNetwork.mean(networks)


class _Net(nn.Module):  # type: ignore[misc]  # the type checker does not see torch
    def __init__(self, width: int, known: int, names: int, recipe: FastRecipe, *, kinds: int, llms: int) -> None:
        super().__init__()
        self.llms = llms
        self.kind_level = nn.Embedding(max(kinds, 1) * llms, 1)
        nn.init.zeros_(self.kind_level.weight)
        self.a = nn.Linear(width, recipe.hidden)
        self.b = nn.Linear(recipe.hidden, recipe.joint)
        self.v = nn.Linear(recipe.identity, recipe.joint, bias=False)
        self.identity = nn.Embedding(known + 1, recipe.identity)
        self.k = nn.Linear(names, recipe.identity, bias=False)
        self.c = nn.Linear(recipe.joint, OUTPUTS)
        self.d = nn.Linear(recipe.hidden, OUTPUTS, bias=False)
        self.drop_input, self.drop = nn.Dropout(recipe.input_dropout), nn.Dropout(recipe.dropout)

    def forward(self, x: Any, prompt: Any, row: Any, names: Any) -> Any:
        z = self.drop(torch.relu(self.a(self.drop_input(x))))
        # The part of a prompt is computed once, not once for each pair.
        h = torch.relu(self.b(z)[prompt] + self.v(self.identity.weight)[row] + self.v(self.k(names)))
        return self.c(self.drop(h)) + self.d(z)[prompt]

    def kind_levels(self, kind: Any, llm: Any) -> Any:
        """Return the level of each answer by its kind and LLM; 0 without a kind."""
        found = self.kind_level(kind.clamp(min=0) * self.llms + llm).squeeze(-1)
        return torch.where(kind >= 0, found, 0.0)

    def arrays(self) -> dict[str, Floats]:
        return arrays(
            a=self.a.weight.T, a_bias=self.a.bias, b=self.b.weight.T, b_bias=self.b.bias, v=self.v.weight.T,
            identity=self.identity.weight, k=self.k.weight.T, c=self.c.weight.T, d=self.d.weight.T,
            c_bias=self.c.bias,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Answers:
    """The pairs of a batch, as tensors."""

    lengths: Any
    censored: Any
    soft: Any
    weight: Any
    level: Any
    kind_level: Any
    kind: Any
    prompt: Any


def _loss(y: Any, answers: _Answers, recipe: FastRecipe) -> Any:
    mu, log_sigma = y[..., 0] + answers.level, (y[..., 1] + SIGMA_AT_ZERO).clamp(-4.0, 2.0)
    log_mean, log_std = y[..., 2] + answers.level, y[..., 3] + answers.level - STD_BELOW_MEAN

    def distance(shift: Any, about: Any, mean: Any, std: Any) -> Any:
        near = (mu + shift - about).abs() + 0.5 * (log_mean + shift - mean).abs()
        return near + 0.5 * (log_std + shift - std).abs()

    targets = make_targets(answers.lengths, answers.censored)
    true_std = torch.log(torch.expm1(targets.log_std).clamp(min=1.0))
    shift = answers.kind_level
    labelled = negative_log_likelihood(mu + shift, log_sigma.detach(), targets)
    labelled = labelled + negative_log_likelihood(mu.detach(), log_sigma, targets)
    labelled = labelled + distance(shift, targets.log_mean, targets.log_mean, true_std) * targets.whole
    soft, known = answers.soft.nan_to_num(), torch.isfinite(answers.soft[..., 0])
    points = soft[..., :1] + torch.exp(soft[..., 1:2]) * torch.tensor(_QUARTILES)
    t = (points - mu[..., None]) * torch.exp(-log_sigma)[..., None]
    taught = (log_sigma[..., None] - student_logpdf(t)).mean(dim=-1) + distance(
        0.0, soft[..., 0], soft[..., 2], soft[..., 3]
    )
    loss = _mean(labelled, targets.weight * answers.weight)
    loss = loss + recipe.soft_weight * _mean(taught, known * answers.weight)
    return loss + recipe.order_weight * _order_loss(y[..., 0], targets, answers)


def _order_loss(y: Any, targets: Any, answers: _Answers) -> Any:
    """Logistic loss on the order of answers to two prompts of one kind, levels removed; at most _ORDERED answers."""
    chosen = torch.randperm(len(y))[:_ORDERED]
    mu, true = y[chosen], (targets.log_mean - answers.level - answers.kind_level.detach())[chosen]
    kind, prompt, whole = answers.kind[chosen], answers.prompt[chosen], targets.whole[chosen]
    gap = true[None] - true[:, None]
    known = (kind[None] == kind[:, None]) & (prompt[None] != prompt[:, None]) & (gap.abs() > _MIN_GAP)
    known &= whole[None] & whole[:, None]
    loss = nn.functional.softplus(-torch.sign(gap) * (mu[None] - mu[:, None]) / _ORDER_SCALE)
    each = torch.where(known, loss, 0.0).sum(1) / known.sum(1).clamp(min=1)
    return _mean(each, answers.weight[chosen] * known.any(1))


def list_loss(score: Any, place: Any, kind: Any, prompt: Any, weight: Any) -> Any:
    """ListMLE on the answers to prompts of one kind, longest first and shortest first; at most _ORDERED answers.

    An answer's term is the log share of its exp(score) in those of the answers that are no longer than it; shortest
    first, of exp(-score) in those of the answers that are no shorter.
    """
    chosen = torch.randperm(len(score))[:_ORDERED]
    kind, prompt, weight = kind[chosen], prompt[chosen], weight[chosen]
    same = (kind[None] == kind[:, None]) & (prompt[None] != prompt[:, None])
    loss = torch.zeros(())
    for sign in (1.0, -1.0):
        ranked, true = sign * score[chosen], sign * place[chosen]
        rest = same & (true[None] <= true[:, None])
        among = torch.where(rest | torch.eye(len(chosen), dtype=torch.bool), ranked[None], -torch.inf)
        loss = loss + _mean(torch.logsumexp(among, dim=1) - ranked, weight * rest.any(1))
    return loss


def _mean(each: Any, where: Any) -> Any:
    return (each * where).sum() / where.sum().clamp(min=1e-3)


Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]

MIN_PROMPTS: Final = 100
"""An LLM with fewer training prompts has no identity row: its lengths teach the row of unknown LLMs."""
HELD_OUT: Final = 0.06
"""Share of the prompts that calibrate."""
WIDENINGS: Final = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
PACKED_PROMPTS: Final = 3_000
_CELL_PRIOR: Final = 5.0  # answers at which the mean of a cell has half of its weight
TAUGHT_LLMS: Final = 8
"""LLMs without lengths for a prompt that are learned from the teacher there, drawn at random."""


@dataclass(frozen=True, eq=False)
class TeacherOutputs:
    """Predictions of a teacher as further targets: log median, log sigma, log mean and log std of prompts x LLMs."""

    texts: tuple[str, ...]
    llms: tuple[str, ...]
    outputs: Floats

    @classmethod
    def of(
        cls,
        predictor: EncoderPredictor,
        texts: Sequence[str],
        llms: Sequence[str],
        progress: Callable[[float], None] = lambda _: None,
    ) -> TeacherOutputs:
        """Predict the lengths of these texts for those of the LLMs that the predictor knows."""
        known = tuple(llm for llm in llms if llm in predictor.llms)
        outputs = np.empty((len(texts), len(known), OUTPUTS), np.float32)
        for number, text in enumerate(texts):
            found = predictor.predict([text] * len(known), known)
            if not isinstance(found, LogTPredictions):
                raise InputError("predicts classes", hint="a teacher has a log-t head")
            spread = np.maximum(found.sample_std, 1.0)
            outputs[number] = np.stack([found.mu, *map(np.log, (found.sigma, found.sample_mean, spread))], axis=1)
            progress((number + 1) / len(texts))
        return cls(tuple(texts), known, outputs)

    def select(self, texts: Sequence[str], llms: Sequence[str]) -> Floats:
        """Return the outputs for these texts and LLMs, (texts, LLMs, 4); NaN where there are none."""
        places = {text: place for place, text in enumerate(self.texts)}
        rows = np.array([places.get(text, -1) for text in texts])
        found = np.full((len(texts), len(llms), OUTPUTS), np.nan, np.float32)
        for column, llm in enumerate(llms):
            if llm in self.llms:
                found[rows >= 0, column] = self.outputs[rows[rows >= 0], self.llms.index(llm)]
        return found

    def fingerprint(self) -> str:
        """Return a hash of texts and outputs."""
        return hashlib.sha256("\x00".join(self.texts).encode("utf-8", "replace") + self.outputs.tobytes()).hexdigest()


@dataclass(frozen=True, eq=False)
class FastTrainer:
    """One recipe for any table of pairs. `teacher` has predictions for some of the prompts; None: lengths only."""

    vocabulary: Vocabulary
    recipe: FastRecipe = field(default_factory=FastRecipe)
    teacher: TeacherOutputs | None = None
    tables: WordTables | None = None
    """Word tables of the vocabulary that are kept; None: learned from the prompts."""

    def fit(self, table: PairTable, seed: int = 0) -> FastPredictor:
        """Train on all prompts of the table; the predictor is not calibrated."""
        vocabulary = self.vocabulary if self.tables is not None else self.vocabulary.of_texts(table.texts)
        # Made prompts have the same lengths with every LLM and say nothing about differences.
        made = made_prompts(table)
        levels, weight = table.take(~made).levels(), table.prompt_weights() * np.where(made, MADE_WEIGHT, 1.0)
        known = np.flatnonzero(table.prompts_per_llm() >= MIN_PROMPTS)
        identity = np.full(len(table.llms), -1)
        identity[known] = np.arange(len(known))
        answers = np.bincount(table.prompt, minlength=len(table))
        pair_weight = (weight / np.sqrt(np.maximum(answers, 1)))[table.prompt]
        kind = kinds_with_levels(table)
        above = table.log_mean() - levels[table.llm]
        cell = np.where(kind[table.prompt] < 0, -1, kind[table.prompt] * len(table.llms) + table.llm)
        place = above - _means(above, cell)
        effect = np.bincount(table.prompt, place, len(table)) / np.maximum(answers, 1)
        folds = np.random.default_rng(seed).integers(0, FOLDS, len(table))
        pages = [vocabulary.reader.read(text) for text in table.texts]
        # The words of templates say nothing about other prompts: the tables are learned without them.
        effect[made] = 0.0
        counts = weight * ((answers > 0) & ~made)
        learned = learn_tables(pages, effect, vocabulary.meaning, folds, seed, counts, self.tables)
        examples = Examples(
            description=learned.describe(pages, folds),
            prompt=table.prompt,
            llm=table.llm,
            lengths=table.lengths,
            censored=table.censored,
            soft=np.full((len(table.prompt), OUTPUTS), np.nan, np.float32),
            weight=pair_weight / pair_weight.mean(),
            name_features=np.array([identify(llm).features() for llm in (*table.llms, "")], np.float32),
            levels=levels[:-1],
            identity=identity,
            plain=slice(COUNTED, FEATURES),
            kind=np.zeros_like(kind) if self.recipe.ranker == "all" else kind,
            absent=_absent(table, self.recipe.networks),
            place=above if self.recipe.ranker == "all" else place,
        )
        if self.recipe.ranker:
            network = fit_ranker(examples, self.recipe, held_out(table, seed + 1), seed)
        else:
            if self.teacher is not None:
                examples = _taught(examples, table, self.teacher, seed)
            network = fit_network(examples, self.recipe, seed)
        llms = tuple(table.llms[number] for number in known)
        return FastPredictor(
            vocabulary.reader, learned.tables, network, llms, np.append(levels[known], levels[-1]), Calibration()
        )


def fit_ranker(examples: Examples, recipe: FastRecipe, out: NDArray[np.bool_], seed: int) -> FastNetwork:
    """Train for the order; turn scores into lengths by a line through those of the prompts `out`, not trained on.

    The log median, mean and std are the line, sigma is the spread around it: the same for all.
    """
    absent = [out | each for each in examples.absent] or [out]
    network = fit_network(replace(examples, absent=absent), recipe, seed)
    rows = np.flatnonzero(out[examples.prompt])
    x, weight, place = (column[rows] for column in (examples.prompt, examples.weight, examples.place))
    biases = np.array(
        [network.llm_bias(row, name) for row, name in zip(examples.identity, examples.name_features[:-1], strict=True)]
    )
    parts = {p: network.prompt(network.standardise(examples.description[p])) for p in dict.fromkeys(x.tolist())}
    hidden, direct = (np.array([parts[p][part] for p in x.tolist()]) for part in range(2))
    score = network.outputs(hidden + biases[examples.llm[rows]], direct)[:, 0]
    several = examples.lengths[(examples.lengths > 0).sum(axis=1) > 1]
    slope, start = np.polyfit(score, place, 1, w=np.sqrt(weight))
    spread = np.sqrt(np.average((place - slope * score - start) ** 2, weights=weight))
    relative_std = float(np.median([np.std(own[own > 0]) / own.sum() * (own > 0).sum() for own in several]))
    std = start + STD_BELOW_MEAN + np.log(relative_std)
    shifts = np.array([start, np.log(spread) - SIGMA_AT_ZERO, start, std])
    shifts = np.append(shifts, np.full(len(network.c_bias) - OUTPUTS, start))
    columns = [0, 0, 0, 0, *range(OUTPUTS, len(network.c_bias))]
    slopes = np.where(np.arange(len(columns)) == 1, 0.0, max(slope, 1e-3))
    arrays = network.arrays()
    lines = {name: arrays[name][..., columns] * slopes for name in ("c", "d", "c_bias")}
    return FastNetwork.of({**arrays, **lines, "c_bias": lines["c_bias"] + shifts})


def _absent(table: PairTable, networks: int) -> list[NDArray[np.bool_]]:
    """Return for each network the prompts of every n-th group outside CASTILLO; all learn from made prompts."""
    always = (*CASTILLO_GROUPS, MADE)
    present = [name for name in table.groups if name not in always and table.in_groups([name]).any()]
    return [table.in_groups(present[number::networks]) for number in range(networks)] if networks > 1 else []


def predicted(predictor: FastPredictor, table: PairTable) -> tuple[Doubles, Doubles, float]:
    """Return mu, sigma and nu of every pair."""
    found = predictor.predict([table.texts[i] for i in table.prompt], [table.llms[i] for i in table.llm])
    return found.mu, found.sigma, found.nu


def training_pairs(*, ships: bool) -> PairTable:
    """Return CASTILLO with SmolLM2's lengths, the diverse prompts, and made ones, which state their length.

    With `ships`, of the diverse prompts those of clear licences only.
    """
    castillo = load_samples(DataConfig(smollm2=True))
    return PairTable.of(castillo, load_diverse(known_llms=castillo.llms, ships=ships), made_samples(castillo.llms))


def packed_pairs(prompts: int = PACKED_PROMPTS) -> PairTable:
    """Return all prompts of `scripts/gpu_kinds.py`: at most so many of each kind to train on, and those to judge by."""
    table = training_pairs(ships=False)
    return capped(table.take(table.trainable() | table.test), prompts)


def kinds_with_levels(table: PairTable) -> NDArray[np.intp]:
    """Return the kind of each prompt, -1 for CASTILLO's and made ones: their answers have no level of a kind."""
    without = [table.groups.index(name) for name in (*CASTILLO_GROUPS, MADE) if name in table.groups]
    return np.where(np.isin(table.group, without), -1, table.group)


def _means(values: Doubles, cell: NDArray[np.intp]) -> Doubles:
    """Return for each value the mean of its cell, shrunk to 0 where it has few values; 0 for cell -1."""
    place = np.maximum(cell, 0)
    here = cell >= 0
    total, count = (np.bincount(place, w) for w in (np.where(here, values, 0.0), here.astype(np.float64)))
    return np.where(here, (total / (count + _CELL_PRIOR))[place], 0.0)


def made_prompts(table: PairTable) -> NDArray[np.bool_]:
    """Return which prompts were made."""
    return table.in_groups([MADE]) if MADE in table.groups else np.zeros(len(table), bool)


def official_test(table: PairTable) -> PairTable:
    """Return the official test prompts of CASTILLO's six corpora."""
    return table.take(table.test & table.in_groups(list(CASTILLO_GROUPS)))


@dataclass(frozen=True, eq=False)
class LeftOutPairs:
    """Pairs of prompts that a predictor was not trained on, and its predictions for them."""

    table: PairTable
    mu: Doubles
    sigma: Doubles
    """Of the network, without widening."""
    apart: Doubles
    """Variance of the networks' log medians."""

    @classmethod
    def of(cls, predictor: FastPredictor, table: PairTable) -> LeftOutPairs:
        """Predict without widening, and with widening 1 to see the variance."""
        mu, narrow, _ = predicted(replace(predictor, widening=0.0), table)
        _, wide, _ = predicted(replace(predictor, widening=1.0), table)
        return cls(table, mu, narrow, np.maximum(wide**2 - narrow**2, 0.0))

    def spread(self, widening: float) -> Doubles:
        """Return sigma with this widening."""
        return np.asarray(np.sqrt(self.sigma**2 + widening * self.apart))


def fit_widening(parts: Sequence[LeftOutPairs], nu: float) -> float:
    """Return the widening at which 90 % intervals cover 90 % of the lengths of left-out groups, groups equal."""

    def covered(widening: float) -> float:
        return float(np.mean([coverage_90(p.table, p.mu, p.spread(widening), nu) for p in parts]))

    tried = [(widening, covered(widening)) for widening in WIDENINGS]
    return min(tried, key=lambda pair: abs(pair[1] - 0.9))[0]


def held_out(train: PairTable, seed: int) -> NDArray[np.bool_]:
    """Return which prompts calibrate; made ones do not, since their lengths are no LLM's."""
    return np.asarray((np.random.default_rng(seed).random(len(train)) < HELD_OUT) & ~made_prompts(train))


def calibrated(
    trainer: FastTrainer, train: PairTable, widening: float, seed: int
) -> tuple[FastPredictor, dict[str, Any]]:
    """Train on all but a few prompts, on which each LLM is calibrated; return the predictor and its figures."""
    held = held_out(train, seed)
    fitted, out = replace(trainer.fit(train.take(~held), seed), widening=widening), train.take(held)
    names = [train.llms[number] for number in out.llm]
    texts = [out.texts[number] for number in out.prompt]
    weights = out.prompt_weights()[out.prompt]
    truth: dict[str, Any] = {"lengths": out.lengths, "present": out.lengths > 0, "censored": out.censored}
    known = fit_calibration(fitted.predict(texts, names), names, **truth, weights=weights)
    unknown = fit_calibration(fitted.predict(texts, [""] * len(texts)), [""] * len(texts), **truth, weights=weights)
    by_llm = {llm: each for llm, each in known.by_llm.items() if llm in fitted.llms}
    predictor = replace(fitted, calibration=Calibration(unknown.others, by_llm, known.nu), _llm_cache={})
    return predictor, {"held_out": score_pairs(out, *predicted(predictor, out)).defined(), "widening": widening}


def capped(table: PairTable, prompts: int, seed: int = 0) -> PairTable:
    """Return at most so many prompts of each group outside CASTILLO, drawn at random."""
    order = np.random.default_rng(seed).permutation(len(table))
    rank = np.zeros(len(table), np.intp)
    for number, name in enumerate(table.groups):
        own = order[table.group[order] == number]
        rank[own] = 0 if name in CASTILLO_GROUPS else np.arange(len(own))
    return table.take(rank < prompts)


def _taught(examples: Examples, table: PairTable, teacher: TeacherOutputs, seed: int) -> Examples:
    """Add the teacher's outputs to the pairs, and pairs that only the teacher has."""
    llms = [number for number, llm in enumerate(table.llms) if llm in teacher.llms]
    soft = teacher.select(table.texts, [table.llms[number] for number in llms])
    chance = np.random.default_rng(seed).random(soft.shape[:2])
    chance[~np.isfinite(soft[..., 0])] = np.inf
    column_of = np.full(len(table.llms), -1)
    column_of[llms] = np.arange(len(llms))
    column = column_of[examples.llm]
    has = column >= 0
    own = examples.soft.copy()
    own[has] = soft[examples.prompt[has], column[has]]
    chance[examples.prompt[has], column[has]] = np.inf
    few = np.sort(chance, axis=1)[:, min(TAUGHT_LLMS, len(llms)) - 1 :][:, :1]
    prompt, taught = np.nonzero((chance <= few) & np.isfinite(chance))
    usual = np.bincount(examples.prompt, examples.weight, len(table)) / np.maximum(
        np.bincount(examples.prompt, minlength=len(table)), 1
    )
    rows = np.concatenate([examples.prompt, prompt])
    order = np.argsort(rows, kind="stable")
    spare = np.zeros((len(prompt), examples.lengths.shape[1]), bool)
    return replace(
        examples,
        prompt=rows[order],
        llm=np.concatenate([examples.llm, np.array(llms, np.intp)[taught]])[order],
        lengths=np.concatenate([examples.lengths, spare])[order],
        censored=np.concatenate([examples.censored, spare])[order],
        soft=np.concatenate([own, soft[prompt, taught]])[order],
        weight=np.concatenate([examples.weight, usual[prompt]])[order],
    )
