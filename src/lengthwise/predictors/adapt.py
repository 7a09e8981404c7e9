"""`lengthwise adapt`: add an LLM to a model file from a few of its lengths, without retraining.

The lengths come from what `lengthwise collect` writes or from plain columns (`read_observed`); `adapt_file` fits a
`Mixture` of the known LLMs and writes it into the model file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import DEFAULT_CAP
from lengthwise.llm_names import resolve_llm
from lengthwise.predictors.calibration import MIN_LENGTHS
from lengthwise.predictors.contract import LoadedPredictor, LogTPredictions, PredictionInput, as_logt
from lengthwise.predictors.mixture import (
    AdaptedPredictor,
    Answers,
    Mixture,
    fit_mixture,
    kinds,
    likeness,
    to_part,
)
from lengthwise.predictors.model_file import ADAPTED, LEARNED, ModelFile, read_model_file, write_model_file
from lengthwise.predictors.resolve import load_predictor, model_path
from lengthwise.traffic.scores import Forecast, PredictionScores, score_predictions

Floats = NDArray[np.float64]

ENOUGH: Final = 50
"""Number of lengths below which a warning is printed."""
MIN_PROMPTS: Final = 10

_HINTS: Final = {
    "prompt": "the text that was asked",
    "length": "a whole number of tokens, at least 1",
    "lengths": "a list of whole numbers of tokens, each at least 1",
    "capped": "true where the answer was cut off by a limit",
}


@dataclass(frozen=True, eq=False)
class Observed:
    """Distinct prompts, and up to k lengths of the LLM's answers to each."""

    llm: str
    texts: tuple[str, ...]
    lengths: NDArray[np.float64]
    """(prompts, k)"""
    present: NDArray[np.bool_]
    censored: NDArray[np.bool_]
    """Whether the answer was cut off, so that the length is a lower bound."""
    origin: str

    @classmethod
    def of(
        cls,
        llm: str,
        texts: Sequence[str],
        lengths: Sequence[int],
        capped: Sequence[bool | None] | None = None,
        *,
        origin: str,
    ) -> Observed:
        """Group answers by prompt; InputError if there are too few."""
        cut = [False] * len(lengths) if capped is None else capped
        prompts, table, present, censored = by_prompt(texts, lengths, cut)
        if len(lengths) < MIN_LENGTHS or len(prompts) < MIN_PROMPTS:
            raise InputError(
                f"{len(lengths)} lengths of {len(prompts)} prompts are too few",
                source=origin,
                hint=(
                    f"give at least {MIN_LENGTHS} of {MIN_PROMPTS} prompts; 50 to 500 lengths of as many prompts are "
                    "recommended"
                ),
            )
        if censored.sum() > len(lengths) / 2:
            raise InputError("most of the answers were cut off", source=origin, hint="collect them with a higher limit")
        return cls(llm, tuple(prompts), table, present, censored, origin)

    @property
    def caps(self) -> NDArray[np.float64]:
        """The cap of each prompt's prediction: where its answers were cut off, else above all lengths."""
        longest = max(DEFAULT_CAP, float(self.lengths.max()))
        return np.where(self.censored.any(axis=1), self.lengths.max(axis=1), longest)

    @property
    def count(self) -> int:
        """Number of lengths."""
        return int(self.present.sum())


def by_prompt(
    prompts: Sequence[str], lengths: Iterable[float], censored: Iterable[bool | None]
) -> tuple[list[str], Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    """Group answers by prompt: the distinct prompts, then lengths, present and censored, each (prompts, k)."""
    answers: dict[str, list[tuple[float, bool]]] = {}
    for prompt, length, cut in zip(prompts, lengths, censored, strict=True):
        answers.setdefault(prompt, []).append((length, bool(cut)))
    table = np.full((len(answers), max(map(len, answers.values()), default=0), 2), np.nan)
    for row, own in enumerate(answers.values()):
        table[row, : len(own)] = own
    present = np.isfinite(table[..., 0])
    return list(answers), np.where(present, table[..., 0], 0.0), present, table[..., 1] > 0


def read_observed(path: Path, llm: str | None = None) -> Observed:
    """Read a Parquet, CSV or JSON lines file of `prompt` and `lengths` or `length`, perhaps `capped` and `llm`.

    `llm` names the LLM, and selects one from a file with several. Without it the file must have exactly one.
    """
    import pyarrow as pa  # here: predicting with an adapted model file needs no pyarrow

    from lengthwise.workloads.columns import conform

    table = _read(path)
    several = "lengths" in table.column_names
    field, kind = ("lengths", pa.list_(pa.int64())) if several else ("length", pa.int64())
    schema = pa.schema(
        [
            pa.field("prompt", pa.large_string(), nullable=False),
            pa.field(field, kind, nullable=False),
            pa.field("capped", pa.list_(pa.bool_()) if several else pa.bool_()),
            pa.field("llm", pa.string()),
        ]
    )
    rows = conform(table, schema, required=("prompt", field), hints=_HINTS, source=path)
    lengths = [each if several else [each] for each in rows[field].to_pylist()]
    cut = [
        flags if several and flags is not None else [flags] * len(each)
        for flags, each in zip(rows["capped"].to_pylist(), lengths, strict=True)
    ]
    _check(rows, field, lengths, cut, path)
    selected, name = _rows_of(rows["llm"].to_pylist(), llm, path)
    texts = rows["prompt"].to_pylist()
    flat = [(texts[i], *pair) for i in selected for pair in zip(lengths[i], cut[i], strict=True)]
    return Observed.of(
        name, [a for a, _, _ in flat], [b for _, b, _ in flat], [c for _, _, c in flat], origin=str(path)
    )


def _read(path: Path) -> Any:  # pyarrow has no types
    import pyarrow as pa
    from pyarrow import csv
    from pyarrow import json as json_lines

    from lengthwise.files import check_readable, read_parquet_table

    if path.suffix not in (".csv", ".jsonl", ".ndjson"):
        return read_parquet_table(path)
    check_readable(path)
    try:
        if path.suffix == ".csv":
            return csv.read_csv(path, parse_options=csv.ParseOptions(newlines_in_values=True))
        return json_lines.read_json(path)
    except pa.ArrowInvalid as error:
        raise InputError(f"cannot be read: {str(error).splitlines()[0]}", source=path) from error


def _check(rows: Any, field: str, lengths: list[list[int | None]], cut: list[list[bool | None]], path: Path) -> None:
    from lengthwise.workloads.columns import refuse_where

    bad = np.array([not each or any(x is None or x < 1 for x in each) for each in lengths], bool)
    refuse_where(bad, rows[field], field=field, wrong="is not a length", hint=_HINTS[field], source=path)
    uneven = np.array([len(flags) != len(each) for flags, each in zip(cut, lengths, strict=True)], bool)
    refuse_where(uneven, rows["capped"], field="capped", wrong="is not as long as lengths", hint=None, source=path)


def _rows_of(llms: list[str | None], llm: str | None, path: Path) -> tuple[list[int], str]:
    """Return the rows of one LLM, and its name."""
    names = sorted({name for name in llms if name is not None})
    if len(names) <= 1:
        if llm is None and not names:
            raise InputError("does not name the LLM", source=path, field="llm", hint="give --llm NAME")
        return list(range(len(llms))), names[0] if llm is None else llm
    if llm is None:
        raise InputError(f"holds lengths of {len(names)} LLMs", source=path, field="llm", hint="choose one with --llm")
    name = resolve_llm(llm, names)
    return [row for row, each in enumerate(llms) if each == name], name


_SCORED_FOLDS: Final = 5
_BATCH: Final = 16


@dataclass(frozen=True)
class AdaptReport:
    """The fitted mixture, and scores before and after."""

    llm: str
    base: str
    replaced: bool
    lengths: int
    prompts: int
    cut_off: int
    shift: float
    factor: float
    weights: dict[str, float]
    before: PredictionScores
    """On held-out prompts, as for an unknown LLM."""
    after: PredictionScores


def adapt_file(
    model: str | Path, observed: Observed, out: Path, *, progress: Callable[[str, float], None] | None = None
) -> AdaptReport:
    """Add the LLM to a packaged predictor or a model file, and write the result; an LLM of that name is replaced."""
    with one_thread():
        return _adapt_file(model_path(model), observed, out, progress)


def _adapt_file(
    path: Path, observed: Observed, out: Path, progress: Callable[[str, float], None] | None
) -> AdaptReport:
    file = read_model_file(path)
    base, adapted = taken_apart(file, load_predictor(path))
    llm = known_name(observed.llm, base.llms)
    mu, sigma, nu = predict_known_llms(base, llm, observed.texts, progress)
    answers = Answers(
        mu=mu[:, :-1],
        sigma=sigma[:, :-1],
        kinds=kinds(observed.texts),
        lengths=observed.lengths,
        present=observed.present,
        censored=observed.censored,
        nu=nu,
    )
    before = LogTPredictions.of(mu[:, -1], sigma[:, -1], observed.caps, nu=nu)
    like = likeness(llm, base.llms)
    after = _unseen(answers, like, observed.caps, progress)
    mixture = fit_mixture(answers, like)
    report = AdaptReport(
        llm=llm,
        base=str(file.card["name"]),
        replaced=llm in adapted or llm in base.llms,
        lengths=observed.count,
        prompts=len(observed.texts),
        cut_off=int(observed.censored.sum()),
        shift=mixture.shift,
        factor=mixture.factor,
        weights=dict(zip(base.llms, mixture.weights.tolist(), strict=True)),
        before=_score(before, answers),
        after=_score(after, answers),
    )
    figures = {key: value for key, value in asdict(report).items() if key not in ("llm", "base", "replaced", "weights")}
    figures |= {"before": report.before.defined(), "after": report.after.defined()}
    card = {key: value for key, value in file.card.items() if key != "format"}
    card["adapted"] = {**card.get("adapted", {}), llm: figures}
    parts = {**file.parts, ADAPTED: to_part({**adapted, llm: mixture}, base.llms)}
    write_model_file(out, card, parts)
    return report


def taken_apart(file: ModelFile, loaded: LoadedPredictor) -> tuple[LoadedPredictor, Mapping[str, Mixture]]:
    """Return the trained predictor of a model file, and the LLMs that were added to it."""
    if LEARNED in file.parts:
        from lengthwise.predictors.learner import LearnedPredictor  # brings the compiler

        loaded = loaded.base if isinstance(loaded, LearnedPredictor) else loaded
    return (loaded.base, loaded.adapted) if isinstance(loaded, AdaptedPredictor) else (loaded, {})


def known_name(name: str, known: tuple[str, ...]) -> str:
    """Return the known LLM that a short name means; any other name is a new LLM."""
    try:
        return resolve_llm(name, known)
    except InputError:
        return name


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: for many products of small matrices more cost ten times the CPU time and save none."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(1):
        yield


@contextmanager
def unknown_llms_unlogged() -> Iterator[None]:
    """Suppress the warning about an unknown LLM."""
    logger = logging.getLogger("lengthwise.predictors")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def predict_known_llms(
    predictor: LoadedPredictor, llm: str, texts: Sequence[str], progress: Callable[[str, float], None] | None = None
) -> tuple[Floats, Floats, float]:
    """Return mu and sigma (texts, LLMs + 1) for every known LLM and, last, for `llm` unadapted; and nu."""
    found = []
    with unknown_llms_unlogged():
        for start in range(0, len(texts), _BATCH):
            some = texts[start : start + _BATCH]
            predictions = as_logt(
                predictor.predict([PredictionInput(text, n) for text in some for n in (*predictor.llms, llm)])
            )
            found.append(np.stack([predictions.mu, predictions.sigma]).reshape(2, len(some), -1))
            if progress is not None:
                progress("reading prompts", min(1.0, (start + _BATCH) / len(texts)))
    mu, sigma = np.concatenate(found, axis=1)
    return mu, sigma, predictions.nu


def _unseen(
    answers: Answers, like: Floats, caps: Floats, progress: Callable[[str, float], None] | None
) -> LogTPredictions:
    """Return predictions for each prompt from a fit to the other folds."""
    mu, sigma = np.empty(len(answers)), np.empty(len(answers))
    fold = np.random.default_rng(1).permutation(len(answers)) % _SCORED_FOLDS
    for number in range(_SCORED_FOLDS):
        held_out = fold == number
        mixture = fit_mixture(answers.take(~held_out), like)
        mu[held_out], sigma[held_out] = mixture.apply(
            answers.mu[held_out], answers.sigma[held_out], answers.kinds[held_out]
        )
        if progress is not None:
            progress("scoring", (number + 1) / (_SCORED_FOLDS + 1))  # the fit to all lengths takes as long as one
    return LogTPredictions.of(mu, sigma, caps, nu=answers.nu)


def _score(predictions: LogTPredictions, answers: Answers) -> PredictionScores:
    """Score predictions; a censored answer is inside an interval that reaches its cap."""
    return score_predictions(
        Forecast.of(predictions), answers.lengths, present=answers.present, censored=answers.censored
    )
