"""`lengthwise adapt MODEL --from DIR`: a better model file from a traffic log of `lengthwise serve --log DIR`.

The offline form of learning while serving: a `learner.Learner` on the predictor observes the answers of the log, of
each LLM and of each tenant. A request whose prompt is in the log is described by it; one without has the logged
prediction. What is learned from the first 80 % of an LLM's requests is scored on the last 20 %; an LLM whose
predictions there do not get better (mean log score) is left as it is. What is written is learned from all requests, and
a server that learns begins with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from lengthwise.errors import InputError
from lengthwise.lengths import DEFAULT_CAP, LogT
from lengthwise.predictors.adapt import one_thread, unknown_llms_unlogged
from lengthwise.predictors.calibration import MIN_LENGTHS
from lengthwise.predictors.contract import PredictionInput, as_logt
from lengthwise.predictors.learner import Learner
from lengthwise.predictors.model_file import LEARNED, read_model_file, write_model_file
from lengthwise.predictors.resolve import (
    load_predictor,
    model_path,
    packaged_predictors,
    predictor_label,
)
from lengthwise.predictors.thinking import understood
from lengthwise.predictors.traffic_evaluation import scorable, score_rows
from lengthwise.traffic.log import PREDICTOR_NAME
from lengthwise.traffic.reader import Floats, LoggedTraffic, Mask
from lengthwise.traffic.rows import RequestRow
from lengthwise.traffic.scores import PredictionScores

HELD_OUT: Final = 0.2
"""Share of an LLM's requests, the last ones, that its scores are of."""
MAX_ANSWERS: Final = 2048
"""The last answers of an LLM that are learned from; a learner has forgotten those before them."""

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Adaptation:
    """One LLM: scores of the held-out requests before and after."""

    llm: str
    texts: bool
    """Whether the log has its prompts."""
    requests: int
    before: PredictionScores
    after: PredictionScores

    @property
    def better(self) -> bool:
        """Whether the held-out lengths are more likely under the new predictions."""
        return self.after.log_score > self.before.log_score


@dataclass(frozen=True)
class TrafficAdaptation:
    """All LLMs of a log with enough lengths."""

    base: str
    llms: tuple[Adaptation, ...]
    too_few: Mapping[str, int]
    """LLMs with fewer lengths than needed, and how many they have."""
    cut_off: tuple[str, ...]
    """LLMs with too many answers that are cut off."""
    written: bool


def adapt_traffic(
    model: str | Path, traffic: LoggedTraffic, out: Path, *, force: bool = False, progress: Progress | None = None
) -> TrafficAdaptation:
    """Adapt a packaged predictor or a model file to a log, and write the LLMs that got better; with `force`, all."""
    with one_thread(), unknown_llms_unlogged():
        return _Adapting(model, traffic, progress).run(out, force=force)


class _Adapting:
    def __init__(self, model: str | Path, traffic: LoggedTraffic, progress: Progress | None) -> None:
        self._path = model_path(model)
        self._name = predictor_label(self._path)
        self._file, self._loaded = read_model_file(self._path), load_predictor(self._path)
        self._learner = Learner(self._loaded, tenants_apart=True)
        self._progress = progress or (lambda _what, _done: None)
        known = traffic.take(traffic.known)
        by_it = np.array([row.predictor == self._name for row in known.rows], bool)
        has_text = np.array([row.text is not None for row in known.rows], bool)
        self._traffic = known.take(has_text | (by_it & np.isfinite(known.predicted[:, 0])))
        self._tenants = _tenants_with_enough(self._traffic)
        self._names = sorted(set(known.llm.tolist()))

    def run(self, out: Path, *, force: bool) -> TrafficAdaptation:
        found, too_few, cut_off = [], {}, {}
        for number, llm in enumerate(self._names):
            self._progress(llm, number / len(self._names))
            rows = self._traffic.take(self._traffic.llm == llm)
            rows = rows.take(np.arange(len(rows)) >= len(rows) - MAX_ANSWERS)
            train = _training(rows)
            cut, answers = int(rows.censored[train].sum()), int(train.sum())
            if answers < MIN_LENGTHS or not scorable(rows)[~train].any():
                too_few[llm] = len(rows)
            elif cut > answers / 2:
                cut_off[llm] = f"{cut} of {answers} answers are cut off, too many to learn from"
            else:
                found.append(self._adapted(llm, rows, train))
        if not found and cut_off:
            llm, problem = next(iter(cut_off.items()))
            raise InputError(
                f"{llm}: {problem}", source=self._traffic.origin, hint="give lengths with a larger max_tokens"
            )
        if not found:
            raise InputError(
                "too few lengths: " + (", ".join(f"{llm} {n}" for llm, n in too_few.items()) or "none"),
                source=self._traffic.origin,
                hint=f"an LLM needs {MIN_LENGTHS} lengths, and one in the last {HELD_OUT:.0%}, of requests with "
                f"prompts (--keep-prompts) or predictions of {self._name}",
            )
        kept = {each.llm for each in found if each.better or force}
        if kept:
            self._write(out, kept, found)
        return TrafficAdaptation(self._name, tuple(found), too_few, tuple(cut_off), bool(kept))

    def _adapted(self, llm: str, rows: LoggedTraffic, train: Mask) -> Adaptation:
        """Learn from the first requests of an LLM, score the last ones, and learn from those too."""
        self._observe(rows.take(train))
        held = rows.take(~train & scorable(rows))
        before, after = self._predictions(held)
        self._observe(rows.take(~train))
        texts = any(row.text is not None for row in rows.rows)
        return Adaptation(llm, texts, len(rows), score_rows(held, before), score_rows(held, after))

    def _observe(self, rows: LoggedTraffic) -> None:
        for row, predicted, tokens, censored in zip(
            rows.rows, rows.predicted, rows.output_tokens.tolist(), rows.censored.tolist(), strict=True
        ):
            # A tenant without enough answers of its own is predicted by those of all.
            for tenant in (None, row.tenant) if (row.llm, row.tenant) in self._tenants else (None,):
                request = _request(row, tenant)
                if row.text is None:
                    self._learner.observe_predicted(request, _logged(row, predicted), tokens, censored=censored)
                else:
                    self._learner.observe(request, tokens, censored=censored)

    def _predictions(self, rows: LoggedTraffic) -> tuple[Floats, Floats]:
        """Return mu and sigma (n, 2) as the model file predicts, and with what is learned."""
        before, after = rows.predicted.copy(), np.empty((len(rows), 2))
        for number, row in enumerate(rows.rows):
            enough = (row.llm, row.tenant) in self._tenants
            request = _request(row, row.tenant if enough else None)
            if row.text is None:
                found = self._learner.predict_again(request, _logged(row, rows.predicted[number]))
                after[number] = found.mu, found.sigma
            else:
                made, alone = as_logt(self._learner.predict([request])), self._learner.alone([request])
                after[number], before[number] = (made.mu[0], made.sigma[0]), (alone.mu[0], alone.sigma[0])
        return before, after

    def _write(self, out: Path, llms: set[str], found: list[Adaptation]) -> None:
        card: dict[str, Any] = {key: value for key, value in self._file.card.items() if key != "format"}
        card["traffic"] = [
            {**asdict(each), "before": each.before.defined(), "after": each.after.defined(), "better": each.better}
            for each in found
        ]
        names = {_request(row, None).learned_as for row in self._traffic.rows if row.llm in llms}
        write_model_file(out, card, {**self._file.parts, LEARNED: self._learner.learned(names)})


def _tenants_with_enough(traffic: LoggedTraffic) -> set[tuple[str | None, str | None]]:
    """Return the (LLM, tenant) with enough lengths, of LLMs with several tenants."""
    count = Counter((row.llm, row.tenant) for row in traffic.rows)
    several = Counter(llm for llm, _ in count)
    return {key for key, lengths in count.items() if several[key[0]] > 1 and lengths >= MIN_LENGTHS}


def _request(row: RequestRow, tenant: str | None) -> PredictionInput:
    thinking = understood(row.thinking)
    return PredictionInput(row.text or "", row.llm or "", row.max_tokens, tenant=tenant, thinking=thinking)


def _logged(row: RequestRow, predicted: Floats) -> LogT:
    return LogT(float(predicted[0]), float(predicted[1]), row.max_tokens or DEFAULT_CAP)


def predictor_in_use(traffic: LoggedTraffic, folder: Path) -> Path:
    """Return the model file that predicted the newest request: a packaged one, or the one beside the log."""
    label = traffic.rows[-1].predictor
    beside = [folder / PREDICTOR_NAME] if (folder / PREDICTOR_NAME).is_file() else []
    for path in (*packaged_predictors().values(), *beside):
        if predictor_label(path) == label:
            return path
    raise InputError(
        f"the predictor of the newest request, {label}, is not a packaged one or {folder / PREDICTOR_NAME}",
        source=traffic.origin,
        hint="name a predictor: fast, default, or the model file that it was",
    )


def _training(rows: LoggedTraffic) -> Mask:
    """Return which rows are not among the last."""
    return np.arange(len(rows)) < round((1 - HELD_OUT) * len(rows))
