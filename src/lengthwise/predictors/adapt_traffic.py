"""`lengthwise adapt MODEL --from DIR`: a better model file from a traffic log of `lengthwise serve --learn DIR`.

With prompts in the log, each LLM becomes a mixture of known ones, as in `adapt`. Without, the predictor gets a
correction for each LLM and tenant (`corrections`), from the predictions and lengths in the log. Both are fitted to the
first 80 % of the requests and scored on the last 20 %; an LLM whose predictions there do not get better (mean log
score) is left as it is. What is written is fitted to all requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import LogT
from lengthwise.predictors import corrections as corrected_by
from lengthwise.predictors.adapt import (
    MIN_PROMPTS,
    by_prompt,
    known_name,
    one_thread,
    predict_known_llms,
    taken_apart,
)
from lengthwise.predictors.calibration import MIN_LENGTHS, Adjustment, CensoredError
from lengthwise.predictors.contract import LoadedPredictor, PredictionInput, as_logt
from lengthwise.predictors.corrections import corrected, fit_corrections
from lengthwise.predictors.mixture import Answers, Mixture, fit_mixture, kinds, likeness, to_part
from lengthwise.predictors.model_file import ADAPTED, CORRECTIONS, read_model_file, write_model_file
from lengthwise.predictors.prefix_memory import PrefixMemory
from lengthwise.predictors.resolve import (
    load_predictor,
    model_path,
    packaged_predictors,
    predictor_label,
)
from lengthwise.predictors.traffic_evaluation import scorable, score_rows
from lengthwise.traffic.log import MEMORY_NAME, PREDICTOR_NAME
from lengthwise.traffic.reader import Floats, LoggedTraffic, Mask
from lengthwise.traffic.scores import PredictionScores

HELD_OUT: Final = 0.2
"""Share of the requests, the last ones, that the scores are of."""
MAX_PROMPTS: Final = 1000
"""The last prompts of an LLM that are fitted to: more take minutes and hardly change the fit."""
_BATCH: Final = 64

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Adaptation:
    """One LLM: scores of the held-out requests before and after."""

    llm: str
    texts: bool
    """Whether it was fitted to prompts; else by corrections."""
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


@dataclass(frozen=True, eq=False)
class _Fitted:
    mixtures: dict[str, Mixture]
    corrections: dict[tuple[str, str | None], Adjustment]


def adapt_traffic(
    model: str | Path, traffic: LoggedTraffic, out: Path, *, force: bool = False, progress: Progress | None = None
) -> TrafficAdaptation:
    """Adapt a packaged predictor or a model file to a log, and write the LLMs that got better; with `force`, all."""
    with one_thread():
        return _Adapting(model, traffic, progress).run(out, force=force)


class _Adapting:
    def __init__(self, model: str | Path, traffic: LoggedTraffic, progress: Progress | None) -> None:
        self._path = model_path(model)
        self._name = predictor_label(self._path)
        self._file, self._loaded = read_model_file(self._path), load_predictor(self._path)
        self._base, self._adapted, self._corrections = taken_apart(self._loaded)
        self._traffic = traffic.take(traffic.known)
        self._progress = progress or (lambda _what, _done: None)

    def run(self, out: Path, *, force: bool) -> TrafficAdaptation:
        found, fitted, too_few = [], [], {}
        cut_off: dict[str, CensoredError] = {}
        names = sorted(set(self._traffic.llm.tolist()))
        for number, llm in enumerate(names):
            self._progress(llm, number / len(names))
            rows = self._traffic.take(self._traffic.llm == llm)
            try:
                one = self._with_text(llm, rows) or self._without_text(llm, rows)
            except CensoredError as error:
                cut_off[llm] = error
                continue
            if one is None:
                too_few[llm] = len(rows)
                continue
            found.append(one[0])
            if one[0].better or force:
                fitted.append(one[1])
        if not found and cut_off:
            llm, cause = next(iter(cut_off.items()))
            raise InputError(f"{llm}: {cause.problem}", source=self._traffic.origin, hint=cause.hint)
        if not found:
            raise InputError(
                "too few lengths: " + (", ".join(f"{llm} {n}" for llm, n in too_few.items()) or "none"),
                source=self._traffic.origin,
                hint=f"an LLM needs prompts (--keep-prompts) or predictions of {self._name}, and "
                f"{MIN_LENGTHS} lengths, of {MIN_PROMPTS} prompts; and one in the last {HELD_OUT:.0%}",
            )
        if fitted:
            self._write(out, fitted, found)
        return TrafficAdaptation(self._name, tuple(found), too_few, tuple(cut_off), bool(fitted))

    def _with_text(self, llm: str, rows: LoggedTraffic) -> tuple[Adaptation, _Fitted] | None:
        """Fit a mixture to the requests with text; None if there are too few."""
        rows = rows.take(np.array([row.text is not None for row in rows.rows], bool))
        train = _training(rows)
        texts = [str(row.text) for row in rows.rows]
        if train.sum() < MIN_LENGTHS or len({texts[i] for i in np.flatnonzero(train)}) < MIN_PROMPTS:
            return None
        if not scorable(rows)[~train].any():
            return None
        recent = dict.fromkeys(reversed(texts))  # distinct, the last first
        chosen = list(recent)[:MAX_PROMPTS]
        place = {text: number for number, text in enumerate(chosen)}
        name = known_name(llm, self._base.llms)
        mu, sigma, nu = predict_known_llms(self._base, name, chosen, self._progress)
        like, kind = likeness(name, self._base.llms), kinds(chosen)

        def fit(used: Mask) -> Mixture:
            own = [i for i in np.flatnonzero(used) if texts[i] in place]
            numbers = [place[texts[i]] for i in own]
            asked, lengths, present, censored = by_prompt(numbers, rows.output_tokens[own], rows.censored[own])
            known = mu[asked, :-1], sigma[asked, :-1], kind[asked]
            return fit_mixture(Answers(*known, lengths, present, censored, nu), like)

        held = rows.take(~train & scorable(rows))
        before = self._predict(self._loaded, held)
        held_texts = [str(row.text) for row in held.rows]
        known_mu, known_sigma, _ = predict_known_llms(self._base, name, held_texts)
        after = np.stack(fit(train).apply(known_mu[:, :-1], known_sigma[:, :-1], kinds(held_texts)), axis=1)
        scored = Adaptation(llm, True, len(rows), score_rows(held, before), score_rows(held, after))
        return scored, _Fitted({name: fit(np.ones(len(rows), bool))}, {})

    def _without_text(self, llm: str, rows: LoggedTraffic) -> tuple[Adaptation, _Fitted] | None:
        """Fit corrections to the predictions of this predictor; None if there are too few."""
        by_it = np.array([row.predictor == self._name for row in rows.rows], bool)
        rows = rows.take(by_it & np.isfinite(rows.predicted[:, 0]))
        train = _training(rows)
        held = rows.take(~train & scorable(rows))
        first = _corrections(rows.take(train))
        if not first or not len(held):
            return None
        after = corrected(first, held.llm.tolist(), held.tenant.tolist(), held.predicted)
        scored = Adaptation(llm, False, len(rows), score_rows(held, held.predicted), score_rows(held, after))
        return scored, _Fitted({}, _corrections(rows))

    def _predict(self, predictor: LoadedPredictor, rows: LoggedTraffic) -> Floats:
        inputs = [PredictionInput(str(row.text), row.llm or "", row.max_tokens, tenant=row.tenant) for row in rows.rows]
        parts = [as_logt(predictor.predict(inputs[i : i + _BATCH])) for i in range(0, len(inputs), _BATCH)]
        return np.stack([np.concatenate([getattr(part, name) for part in parts]) for name in ("mu", "sigma")], axis=1)

    def _write(self, out: Path, fitted: list[_Fitted], found: list[Adaptation]) -> None:
        mixtures, added = dict(self._adapted), dict(self._corrections)
        for each in fitted:
            mixtures |= each.mixtures
            # The old correction was of the old predictions of this LLM.
            added = {key: value for key, value in added.items() if known_name(key[0], self._base.llms) not in mixtures}
            for (llm, tenant), new in each.corrections.items():
                old = corrected_by.adjustment_of(self._corrections, llm, tenant)
                added[(llm, tenant)] = corrected_by.composed(old, new)
        parts = dict(self._file.parts)
        if mixtures:
            parts[ADAPTED] = to_part(mixtures, self._base.llms)
        parts.pop(CORRECTIONS, None)
        if added:
            parts[CORRECTIONS] = corrected_by.to_part(added)
        card: dict[str, Any] = {key: value for key, value in self._file.card.items() if key != "format"}
        card["traffic"] = [
            {**asdict(each), "before": each.before.defined(), "after": each.after.defined(), "better": each.better}
            for each in found
        ]
        write_model_file(out, card, parts)


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


def _training(rows: LoggedTraffic) -> NDArray[np.bool_]:
    """Return which rows are not among the last."""
    return np.arange(len(rows)) < round((1 - HELD_OUT) * len(rows))


def _corrections(rows: LoggedTraffic) -> dict[tuple[str, str | None], Adjustment]:
    return fit_corrections(rows.llm.tolist(), rows.tenant.tolist(), rows.predicted, rows.output_tokens, rows.censored)


def save_memory(traffic: LoggedTraffic, folder: Path) -> Path | None:
    """Write the prefix memory that these requests teach, where the gateway that wrote the log left none (a crash)."""
    from lengthwise.files import atomic_path

    file = folder / MEMORY_NAME
    if file.exists():
        return None
    with atomic_path(file) as path:
        path.write_bytes(replayed_memory(traffic).state())
    return file


def replayed_memory(traffic: LoggedTraffic) -> PrefixMemory:
    """Return the prefix memory of a gateway that has served these requests."""
    memory = PrefixMemory()
    for number in np.flatnonzero(traffic.known).tolist():
        if traffic.rows[number].names:
            text = bool(np.isfinite(traffic.predicted[number, 0]))
            mu, sigma = (traffic.predicted if text else traffic.history)[number].tolist()
            memory.observe(
                traffic.scopes(number), LogT(mu, sigma, int(traffic.cap[number])), int(traffic.output_tokens[number]),
                text=text, censored=bool(traffic.censored[number]),
            )  # fmt: skip
    return memory
