"""TIE's online and offline experiments with a predictor for each policy, as in its paper, beside equal predictions.

SSJF predicts a length (absolute error of the mean), LTR a score (ListMLE), TIE mu and sigma (squared error of the
log-t fitted to the prompt's samples; CLS, mean and maximum pooled). The papers' encoders are BERT, OPT-125M and
DeBERTa; here all three are MiniLM, so that the objectives differ and the encoder does not. They are trained on CASTILLO
without Alpaca, on the answers of the served LLM alone, as in the papers. Beside that TIE has the strongest encoder at
hand, MPNet on the answers of all LLMs, in the place of DeBERTa, whose weights are not available.

The predictions are kept in `results/tie_rivals.parquet`; configs/papers.yaml has the commands that train the networks.
A traffic seed takes the networks of one training seed in turn, so that an interval covers both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from numpy.typing import NDArray

from experiments.frontier import predictions_of
from experiments.kept_rows import add_rows
from experiments.study import Claim, Run, SeededGrid, Study, sections, table_of
from experiments.tie import paper
from experiments.tie.study import (
    ENGINE,
    HIGH,
    LLM,
    LOW,
    OFFLINE_CORPUS,
    Offline,
    at_once,
    draws,
    extend,
    find,
    fleet,
    offline_rows,
    offline_runs,
    over,
)
from experiments.tie.tables import length_heatmap, offline_claims, offline_table, pair_claims
from lengthwise.errors import InputError
from lengthwise.intervals import Ratio, draw_rows, interval
from lengthwise.lengths import TIE_NU
from lengthwise.lengths.families import logt_family
from lengthwise.lengths.fit import fit_rows
from lengthwise.llm_names import resolve_llm
from lengthwise.predictors.encoder import mu_and_sigma
from lengthwise.reports.page import Figure
from lengthwise.reports.tables import Table, multiple, seconds
from lengthwise.simulator import RequestPredictions, predict_workload
from lengthwise.simulator.grid import Cell, Grid, Metric, Plan, run_grid
from lengthwise.traffic.scores import kendall_tau
from lengthwise.workloads import LengthSamples, Workload

Floats = NDArray[np.float64]

KEPT: Final = Path(__file__).parent / "results" / "tie_rivals.parquet"
KINDS: Final = {"ssjf": "mean_std", "ltr": "rank", "tie": "logt"}
"""Head of each rival's network."""
OTHERS: Final = {
    "tie": f"MiniLM, {LLM} alone, fits to ten samples",
    "tie-all": "the same on all 13 LLMs at once",
    "tie-samples": "on all, by the likelihood of the samples",
    "tie-mpnet": "MPNet on all, fits",
}
"""TIE's network as trained in the paper, and with more data, another loss, and a stronger encoder."""
OTHER_LLMS: Final = "no network: fits to the other LLMs' answers, ridge"
"""A reference: a linear model that knows how long the other LLMs answer the same prompt."""
OWN: Final = {"sjf": "ssjf", "ltr": "ltr", "tie": "tie"}
"""The predictor of each policy in the paper."""
STRONGER: Final = "tie-mpnet"
STRONGER_OWN: Final = {**OWN, "tie": STRONGER}
OWN_SETTING, STRONGER_SETTING, TIES_SETTING = "own predictors", "own, TIE's MPNet", "TIE's for all"
STRONGER_FOR_ALL: Final = "TIE's MPNet for all"
COLUMNS: Final = ("ssjf", "ltr", "mu", "sigma")
"""ln of the predicted length, score, mu and sigma."""
_DEFINITIONS: Final[Mapping[str, Metric]] = {
    "mean of E2E / tokens": "per_token_s",
    "total E2E / total tokens": "e2e_s",
}
_RESAMPLES: Final = 1000
_RIDGE: Final = 0.1
"""Weight of the squared coefficients beside a prompt's squared error, inputs in standard deviations."""
_OUTLYING: Final = 3.0
"""Standard deviations at which what other LLMs' fits say is cut."""
_SCORE_SPREAD: Final = 0.5
"""Of the ln lengths that stand for LTR's scores: few enough above the cap, where they would be equal."""


@dataclass(frozen=True)
class RivalsGrid(SeededGrid):
    """What is simulated, at the loads that the paper's lowest and highest rate imply."""

    requests: int = 2000
    pool: int = 6000
    """Offline: requests that arrive at once."""
    predictor: str = "default"
    """The equal predictions."""
    rows: Path = KEPT


@dataclass(frozen=True)
class Fit:
    """How well the networks predict the served LLM's answers to some prompts; means over their training seeds."""

    prompts: str
    count: int
    tau: dict[str, float]
    """Kendall's tau with the mean of the prompt's samples, by rival."""
    mu: Ratio
    """R^2 of TIE's mu, 95 % interval over prompts."""
    sigma: Ratio
    sigma_ceiling: float
    """R^2 that a perfect predictor of sigma would reach against fits to ten samples."""


@dataclass(frozen=True)
class NetworkFit:
    """R^2 on the served LLM's answers to the test prompts, of one of TIE's networks or of a reference."""

    network: str
    """A key of OTHERS, or OTHER_LLMS."""
    seeds: int
    """Of the training; 0 for the reference, which has no chance in it."""
    mu: Ratio
    sigma: Ratio
    log_sigma: Ratio
    """Of ln(1 + sigma), which TIE trains."""


@dataclass(frozen=True, eq=False)
class RivalsResult:
    """Everything measured; a rival's predictor has the rival's name in `online`."""

    grid: RivalsGrid
    origin: str
    training_seeds: int
    online: Grid
    offline: Offline
    fits: tuple[Fit, ...]
    networks: tuple[NetworkFit, ...]

    @property
    def settings(self) -> dict[str, dict[str, str]]:
        """The predictor of each policy, by setting."""
        equal, both = self.grid.predictor, ("sjf", "tie")
        found = {OWN_SETTING: OWN, TIES_SETTING: dict.fromkeys(both, "tie")}
        if STRONGER in self.online.predictions:
            found |= {STRONGER_SETTING: STRONGER_OWN, STRONGER_FOR_ALL: dict.fromkeys(both, STRONGER)}
        return {**found, f"`{equal}` for all": dict.fromkeys(OWN, equal)}


def measure(run: Run, grid: RivalsGrid) -> RivalsResult:
    """The online experiment with all predictions, the offline one with own predictors, then the networks alone."""
    kept = read_rows(grid.rows, columns_of(grid.rows))
    samples = run.castillo()
    tested = samples.where(split="test")
    draw, seeds = draws(tested, grid.requests), range(grid.seeds)
    plan = Plan(fleet(), ("fcfs",), ("oracle",), loads=(LOW, HIGH), seeds=seeds)
    online = run_grid(plan, draw, on_progress=run.part(0.0, 0.1))
    drawn = [draw(seed) for seed in seeds]
    run.report(grid.predictor, 0.1)
    served = tested.where(llm=LLM)
    equal = [predictions_of(workload, grid.predictor, seed) for seed, workload in enumerate(drawn)]
    variants = {(policy, grid.predictor): equal for policy in OWN} | _own(kept, served, drawn)
    online = extend(online, drawn, variants, run.part(0.3, 0.6))
    offline = _offline(kept, samples, run, grid)
    run.report("R^2", 0.9)
    trained = [corpus for corpus in samples.corpora if corpus != OFFLINE_CORPUS]
    networks = _networks(grid.rows, served.where(corpus=[each for each in trained if each in served.corpora]))
    reference = from_other_llms(samples.where(corpus=trained))
    return RivalsResult(grid, samples.origin, len(kept), online, offline, _fits(kept, served), (*networks, *reference))


def _offline(kept: Sequence[Predicted], samples: LengthSamples, run: Run, grid: RivalsGrid) -> Offline:
    """Each policy on its own predictor, TIE on the stronger one too, beside FCFS."""
    draw, seeds = at_once(samples, grid.pool), range(grid.seeds)
    plan = Plan(fleet(), ("fcfs",), ("oracle",), seeds=seeds)
    found = offline_runs(samples, plan, grid.pool, run.part(0.6, 0.7, "offline, "))
    drawn = [draw(seed) for seed in seeds]
    made = _own(kept, offline_rows(samples)[0].where(llm=LLM), drawn)
    own = {key: made[key] for key in (*OWN.items(), ("tie", STRONGER)) if key in made}
    return replace(found, grid=extend(found.grid, drawn, own, run.part(0.7, 0.9, "offline, ")))


Predicted = dict[tuple[str, str, str], Floats]
"""Columns by LLM, corpus and prompt."""


def read_rows(path: Path, columns: Sequence[str] = COLUMNS) -> list[Predicted]:
    """Return the kept predictions, one set for each training seed."""
    table = pyarrow.parquet.read_table(path)
    found: list[Predicted] = []
    for seed in sorted(pc.unique(table["seed"]).to_pylist()):
        rows = table.filter(pc.equal(table["seed"], seed))
        keys = zip(*(rows[name].to_pylist() for name in ("llm", "corpus", "prompt_id")), strict=True)
        values = np.column_stack([rows[name].to_numpy(zero_copy_only=False) for name in columns]).astype(np.float64)
        found.append(dict(zip(keys, values, strict=True)))
    if not found:
        raise InputError("has no predictions", source=path, hint="write it as configs/papers.yaml says")
    return found


def columns_of(path: Path) -> tuple[str, ...]:
    """Return COLUMNS, and those of the stronger network where every seed has it."""
    table = pyarrow.parquet.read_table(path)
    stronger = [f"{name} {STRONGER}" for name in ("mu", "sigma")]
    whole = all(name in table.column_names and not table[name].null_count for name in stronger)
    return (*COLUMNS, *(stronger if whole else ()))


def _own(
    kept: Sequence[Predicted], rows: LengthSamples, drawn: Sequence[Workload]
) -> dict[tuple[str, str], list[RequestPredictions]]:
    """Each policy on its own predictor, TIE on the stronger network too, and SJF on the medians of TIE's networks."""
    made: dict[str, list[RequestPredictions]] = {rival: [] for rival in (*KINDS, STRONGER)}
    for seed, workload in enumerate(drawn):
        values = _of_rows(kept[seed % len(kept)], rows)
        at = dict(zip(rows.table["prompt"].to_pylist(), values, strict=True))
        ssjf, ltr, mu, sigma, *rest = np.array([at[prompt] for prompt in workload.table["prompt"].to_pylist()]).T
        score = mu.mean() + _SCORE_SPREAD * (ltr - ltr.mean()) / max(float(ltr.std()), 1e-9)
        certain, like = np.zeros(len(mu)), predict_workload(workload, "oracle")
        rivals = [("ssjf", ssjf, certain), ("ltr", score, certain), ("tie", mu, sigma)]
        for rival, place, spread in rivals + ([(STRONGER, rest[0], rest[1])] if rest else []):
            made[rival].append(replace(like, predictor=rival, mu=place, sigma=spread))
    pairs = (*OWN.items(), ("sjf", "tie"), ("tie", STRONGER), ("sjf", STRONGER))
    return {(policy, rival): made[rival] for policy, rival in pairs if made[rival]}


def _of_rows(kept: Predicted, rows: LengthSamples) -> Floats:
    """The kept columns of each row, NaN where none is kept."""
    keys = zip(*(rows.table[name].to_pylist() for name in ("llm", "corpus", "prompt_id")), strict=True)
    missing = np.full(len(next(iter(kept.values()))), np.nan)
    return np.array([kept.get(key, missing) for key in keys])


def _networks(path: Path, rows: LengthSamples) -> tuple[NetworkFit, ...]:
    """Every one of OTHERS that is kept, in the seeds that have it."""
    fits = fit_rows(logt_family(TIE_NU), rows.lengths_matrix(), rows.clean_mask())
    names = pyarrow.parquet.read_schema(path).names
    found = []
    for network in OTHERS:
        columns = [name if network == "tie" else f"{name} {network}" for name in ("mu", "sigma")]
        if not set(columns) <= set(names):
            continue
        per_seed = [_of_rows(each, rows) for each in read_rows(path, columns)]
        known = ~fits.degenerate & np.any([np.isfinite(each).all(axis=1) for each in per_seed], axis=0)
        values = np.array([each[known] for each in per_seed if np.isfinite(each[known]).all()])
        true = fits.params[known]
        mu, sigma = (r_squared(true[:, at], values[:, :, at]) for at in range(2))
        log_sigma = r_squared(np.log1p(true[:, 1]), np.log1p(values[:, :, 1]))
        found.append(NetworkFit(network, len(values), mu, sigma, log_sigma))
    return tuple(found)


def from_other_llms(rows: LengthSamples) -> tuple[NetworkFit, ...]:
    """How much of mu and sigma is the prompt's: ridge regression on the fits of all other LLMs to the same prompt.

    It learns from the train and validate prompts; with fewer than two LLMs or without such prompts there is none.
    """
    mine = resolve_llm(LLM, rows.llms)
    served = rows.where(llm=mine)
    fits = {llm: _fitted(rows.where(llm=llm)) for llm in (mine, *(each for each in rows.llms if each != mine))}
    true, *others = (np.array([found.get(key, _NO_FIT) for key in _prompts(served)]) for found in fits.values())
    known = np.isfinite(true).all(axis=1)
    test = known & np.array([split == "test" for split in served.table["split"].to_pylist()])
    learn = known & ~test
    if not others or not learn.any() or not test.any():
        return ()
    given = np.concatenate(others, axis=1)
    given = given[:, np.isfinite(given[learn]).sum(axis=0) > 1]
    scaled = (given - np.nanmean(given[learn], axis=0)) / np.maximum(np.nanstd(given[learn], axis=0), 1e-9)
    inputs = np.clip(np.nan_to_num(scaled), -_OUTLYING, _OUTLYING)
    figures = []
    for target in (true[:, 0], true[:, 1], np.log1p(true[:, 1])):
        centre, level = inputs[learn].mean(axis=0), target[learn].mean()
        a = inputs[learn] - centre
        weights = np.linalg.solve(a.T @ a + _RIDGE * len(a) * np.eye(a.shape[1]), a.T @ (target[learn] - level))
        figures.append(r_squared(target[test], (level + (inputs[test] - centre) @ weights)[None]))
    return (NetworkFit(OTHER_LLMS, 0, *figures),)


_NO_FIT: Final = np.full(2, np.nan)


def _fitted(rows: LengthSamples) -> dict[tuple[str, str], Floats]:
    """mu and sigma of each prompt of one LLM, where they can be fitted."""
    fits = fit_rows(logt_family(TIE_NU), rows.lengths_matrix(), rows.clean_mask())
    pairs = zip(_prompts(rows), fits.params[:, :2], fits.degenerate, strict=True)
    return {key: params for key, params, degenerate in pairs if not degenerate}


def _prompts(rows: LengthSamples) -> list[tuple[str, str]]:
    return list(zip(rows.table["corpus"].to_pylist(), rows.table["prompt_id"].to_pylist(), strict=True))


def _fits(kept: Sequence[Predicted], served: LengthSamples) -> tuple[Fit, ...]:
    """On the test prompts of the corpora of the training, and on Alpaca's where they are at hand."""
    trained = [corpus for corpus in served.corpora if corpus != OFFLINE_CORPUS]
    parts = [("test", trained), *([(OFFLINE_CORPUS, [OFFLINE_CORPUS])] if OFFLINE_CORPUS in served.corpora else [])]
    return tuple(_fit(prompts, kept, served.where(corpus=corpora)) for prompts, corpora in parts)


def _fit(prompts: str, kept: Sequence[Predicted], rows: LengthSamples) -> Fit:
    lengths, clean = rows.lengths_matrix(), rows.clean_mask()
    family = logt_family(TIE_NU)
    fits = fit_rows(family, lengths, clean)
    halves = [fit_rows(family, lengths[:, part::2], clean[:, part::2]) for part in range(2)]
    per_seed = [_of_rows(each, rows) for each in kept]
    usable = clean.any(axis=1) & ~np.isnan(per_seed[0]).any(axis=1)
    mean = rows.clean_mean()
    tau = {
        rival: float(np.mean([kendall_tau(values[usable, at], mean[usable]) for values in per_seed]))
        for at, rival in enumerate(KINDS)
    }
    known = usable & ~fits.degenerate & ~halves[0].degenerate & ~halves[1].degenerate
    r = float(np.corrcoef(*(half.params[known, 1] for half in halves))[0, 1])
    mu, sigma = (
        r_squared(fits.params[known, at], np.array([values[known, 2 + at] for values in per_seed])) for at in range(2)
    )
    return Fit(prompts, int(known.sum()), tau, mu, sigma, 2 * r / (1 + r))


def r_squared(true: Floats, predicted: Floats) -> Ratio:
    """The mean over training seeds (rows of `predicted`), and its bootstrap interval over prompts."""

    def figure(rows: NDArray[np.int64]) -> float:
        return float(1 - ((predicted[:, rows] - true[rows]) ** 2).mean() / true[rows].var())

    resamples = draw_rows(len(true), seed=0, resamples=_RESAMPLES)
    return Ratio(figure(np.arange(len(true))), *interval([figure(rows) for rows in resamples]))


def tables(found: RivalsResult) -> list[Table]:
    """The predictors, latency by both definitions, and all at once."""
    notes = ["Each policy on its own predictor; the study `tie` has equal predictions."]
    return [
        _predictors(found),
        _network_table(found),
        *(_latency(found, name) for name in _DEFINITIONS),
        offline_table(found.offline, notes),
    ]


def figures(found: RivalsResult) -> list[Figure]:
    """The paper's heatmap of the offline runs (figure 5)."""
    return [length_heatmap(found.offline.grid.cells, "each policy on its own predictor")]


def _predictors(found: RivalsResult) -> Table:
    table = table_of(
        "The rivals' predictors",
        found.fits,
        [
            ("prompts", lambda fit: fit.prompts),
            ("n", lambda fit: fit.count),
            ("tau of SSJF's", lambda fit: f"{fit.tau['ssjf']:.3f}"),
            ("of LTR's", lambda fit: f"{fit.tau['ltr']:.3f}"),
            ("of TIE's", lambda fit: f"{fit.tau['tie']:.3f}"),
            ("R^2 of mu", lambda fit: multiple(fit.mu, 2)),
            ("R^2 of sigma", lambda fit: multiple(fit.sigma, 2)),
            ("at most", lambda fit: f"{fit.sigma_ceiling:.2f}"),
        ],
        [
            f"MiniLM for all three, trained on {LLM}'s answers to CASTILLO, without test prompts and Alpaca.",
            (
                f"Training seeds: {found.training_seeds}; 95 % intervals over prompts. R^2 against the log-t fitted to "
                "the prompt's ten samples (the paper: 20). at most: R^2 of sigma that a perfect predictor would reach, "
                "by the agreement of fits to halves of the samples."
            ),
        ],
    )
    theirs = ["paper, LMSYS", "–", "–", "–", "–", *(f"{each:g}" for each in paper.R_SQUARED), "–"]
    return replace(table, rows=[*table.rows, theirs], rule_before=frozenset({len(table.rows)}))


def _network_table(found: RivalsResult) -> Table:
    return table_of(
        "TIE's network, trained in other ways",
        found.networks,
        [
            ("network", lambda fit: OTHERS.get(fit.network, fit.network)),
            ("seeds", lambda fit: str(fit.seeds or "–")),
            ("R^2 of mu", lambda fit: multiple(fit.mu, 2)),
            ("R^2 of sigma", lambda fit: multiple(fit.sigma, 2)),
            ("of ln(1 + sigma)", lambda fit: multiple(fit.log_sigma, 2)),
        ],
        [
            "Test prompts without Alpaca; 95 % intervals over prompts.",
            (
                "Last row: mu and sigma of the other LLMs for the same prompt, by linear regression on the train and "
                "validate prompts. What it misses belongs to one LLM on one prompt."
            ),
        ],
    )


def _latency(found: RivalsResult, definition: str) -> Table:
    grid, measured = found.online, _DEFINITIONS[definition]
    fcfs = [find(grid, "fcfs", "", offered) for offered in grid.offered_loads]
    rows = [["fcfs", "", "–", *(_per_token(cell, measured) for cell in fcfs)]]
    for setting, predictors in found.settings.items():
        for policy, predictor in predictors.items():
            ratios = [over(find(grid, policy, predictor, base.offered), base, measured) for base in fcfs]
            rows.append([policy, setting, f"{grid.tau(predictor):.3f}", *map(multiple, ratios)])
    columns = ("policy", "predictions", "tau", *(f"load {offered.load:g}" for offered in grid.offered_loads))
    notes = [
        (
            f"{grid.workload.name}, {found.origin}: {ENGINE}, {paper.SLOTS} slots, no prefix cache, n "
            f"{found.grid.requests:,} to drain, {found.grid.seeds} paired seeds, 95 % intervals. Over FCFS's; FCFS "
            "itself per token."
        ),
    ]
    return Table(f"Latency per token, {definition}", columns, rows, notes, sections(rows, lambda row: row[1]))


def _per_token(cell: Cell, measured: Metric) -> str:
    mean = cell.latency(measured, "mean")
    tokens = float(np.mean([each.output_tokens.mean() for each in cell.outcomes]))
    return seconds(mean if measured == "per_token_s" else mean / tokens)


def claims(found: RivalsResult) -> list[Claim]:
    """The paper's ratios at its highest rate, in every setting and by both definitions, and R^2."""
    settings = {setting: (found.online, predictors) for setting, predictors in found.settings.items()}
    definitions = {f", {name}": measured for name, measured in _DEFINITIONS.items()}
    test = found.fits[0]
    rows = pair_claims(settings, definitions) + offline_claims(found.offline, OWN, OWN_SETTING)
    r_squared_of = {OWN_SETTING: (test.mu, test.sigma)}
    if STRONGER_SETTING in settings:
        # The rivals of this setting are those of OWN_SETTING: only what TIE gains is claimed again.
        rows = [row for row in rows if row.setting != STRONGER_SETTING or row.statement.startswith("tie ")]
        rows += offline_claims(found.offline, STRONGER_OWN, STRONGER_SETTING)
        stronger = next(fit for fit in found.networks if fit.network == STRONGER)
        r_squared_of[STRONGER_SETTING] = (stronger.mu, stronger.sigma)
    return rows + [
        Claim(f"R^2 of {name}", theirs, ours, setting, neutral=None)
        for setting, fitted in r_squared_of.items()
        for name, theirs, ours in zip(("mu", "sigma"), paper.R_SQUARED, fitted, strict=True)
    ]


def _needs(grid: RivalsGrid) -> str | None:
    return None if grid.rows.is_file() else f"needs {grid.rows}: train the networks (configs/papers.yaml)"


def rows_table(results: Sequence[Mapping[str, Any]], arrays: Mapping[str, NDArray[Any]], about: pa.Table) -> pa.Table:
    """Return one row per prompt and training seed; `about` has corpus, split and id of every prompt of the pack.

    A training's name is its network and its seed: ssjf_0.
    """
    trained = {each["name"]: each for each in results if each["name"].rpartition("_")[0] in {**KINDS, **OTHERS}}
    rows = about.take(pa.array(arrays["prompts"])).select(["corpus", "split", "prompt_id"])
    parts = []
    for seed in dict.fromkeys(name.rpartition("_")[2] for name in trained):
        columns: dict[str, object] = {"seed": np.full(len(rows), int(seed), np.int8), "llm": [LLM] * len(rows)}
        columns |= {name: rows[name] for name in rows.column_names}
        for network in {**KINDS, **OTHERS}:
            each = trained.get(f"{network}_{seed}")
            if each is None:
                continue
            llm = next(number for number, name in enumerate(each["llms"]) if LLM in name.lower())
            outputs = np.asarray(arrays[each["name"]])[:, llm]
            columns["llm"] = [each["llms"][llm]] * len(rows)
            if network in OTHERS:
                mu, sigma = mu_and_sigma(outputs)
                suffix = "" if network == "tie" else f" {network}"
                columns |= {f"mu{suffix}": mu.astype(np.float32), f"sigma{suffix}": sigma.astype(np.float32)}
            else:
                columns[network] = outputs[:, 0].astype(np.float32)
        parts.append(pa.table(columns))
    if not parts:
        raise InputError("has none of " + ", ".join({**KINDS, **OTHERS}), source="results.json")
    return pa.concat_tables(parts, promote_options="default")


def whole_seeds(rows: pa.Table) -> pa.Table:
    """Return the rows that have all of KINDS."""
    has = [pc.is_valid(rows[name]) for name in COLUMNS if name in rows.column_names]
    found = rows.filter(reduce(pc.and_, has)) if len(has) == len(COLUMNS) else rows.slice(0, 0)
    if not len(found):
        raise InputError("has no seed with all of " + ", ".join(KINDS), source="results.json")
    return found


def keep(outputs: Path, to: Path = KEPT) -> str:
    """Add the predictions of `scripts/gpu_papers.py train` to the rows that are kept; say what was written."""
    from lengthwise.training.data import PromptTable, load_samples
    from lengthwise.training.encoder.config import read_config

    results = json.loads((outputs / "results.json").read_text())
    with np.load(outputs / "predictions.npz") as archive:
        arrays = dict(archive)
    config = read_config(Path(__file__).parent.parent / "configs" / "papers.yaml")
    table = rows_table(results, arrays, PromptTable.of(load_samples(config.data)).about)
    if to.is_file():
        table = add_rows(pyarrow.parquet.read_table(to), table, ("seed", "llm", "corpus", "prompt_id"))
    table = whole_seeds(table)
    pyarrow.parquet.write_table(table, to, compression="zstd", compression_level=19)
    return f"{to}: {len(table):,} rows"


STUDY: Study[RivalsGrid, RivalsResult] = Study(
    name="tie_rivals",
    title="TIE's experiments, each policy on its own predictor",
    question="Do predictors of their own explain what TIE gains over SSJF and LTR?",
    paper="TIE, arXiv 2604.00499",
    source="CASTILLO, and predictions of networks trained on it",
    grid=RivalsGrid(),
    quick=RivalsGrid(seeds=3, requests=600, pool=1200, predictor="fast"),
    minutes=(1.5, 0.3),
    serial=True,
    measure=measure,
    tables=tables,
    figures=figures,
    claims=claims,
    needs=_needs,
)
