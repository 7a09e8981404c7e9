"""A predictor by its name, on the rows a person names: what `lengthwise evaluate` runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from lengthwise.errors import InputError
from lengthwise.predictors import LengthPredictor
from lengthwise.predictors.baselines import CAP, ConstantPerLlm, ConstantPerLlmAndCorpus, RowPredictor
from lengthwise.predictors.evaluation import Evaluation, evaluate

if TYPE_CHECKING:
    from lengthwise.workloads import LengthSamples

BASELINES: Final[Mapping[str, Callable[[LengthSamples], LengthPredictor | RowPredictor]]] = {
    "constant": ConstantPerLlm.fit,
    "constant-corpus": ConstantPerLlmAndCorpus.fit,
}
"""Predictors that are fitted on the spot, to the rows that are not evaluated."""
TEST: Final = "test"


def open_predictor(name: str, fit_on: LengthSamples | None) -> LengthPredictor | RowPredictor:
    """A baseline by its name, fitted to `fit_on`; anything else by `load_predictor`."""
    if name not in BASELINES:
        from lengthwise.predictors.load import load_predictor  # loads a model: only where one is asked for

        return load_predictor(name)
    if fit_on is None or not len(fit_on):
        raise InputError(
            f"no rows to fit '{name}' to",
            hint="give a source with other splits than the evaluated one, or another split",
        )
    return BASELINES[name](fit_on)


def evaluated_rows(samples: LengthSamples, split: str | None) -> tuple[LengthSamples, LengthSamples | None]:
    """The rows of `split`, and those of the other splits; without splits all rows, and none.

    `split` None is `test` where there is one. A prompt is in one split only, so constants fitted to the other
    rows have not seen these prompts.
    """
    if split is None and TEST not in samples.splits:
        return samples, None
    chosen = samples.where(split=TEST if split is None else split)
    others = [name for name in samples.splits if name not in chosen.splits]
    return chosen, samples.where(split=others) if others else None


def run(
    predictor: str,
    samples: LengthSamples,
    *,
    split: str | None = None,
    llm: Collection[str] | None = None,
    corpus: Collection[str] | None = None,
    max_tokens: int = CAP,
    progress: Callable[[str, float], None] | None = None,
) -> Evaluation:
    """Evaluate a predictor on the rows of these LLMs and corpora that are in `split`."""
    rows, reference = evaluated_rows(samples.where(llm=llm or None, corpus=corpus or None), split)
    if not len(rows):
        raise InputError("no rows left to evaluate on", source=samples.origin, hint="ask for fewer conditions at once")
    chosen = open_predictor(predictor, reference)
    return evaluate(chosen, rows, name=predictor, reference=reference, max_tokens=max_tokens, progress=progress)
