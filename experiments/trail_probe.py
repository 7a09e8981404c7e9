"""TRAIL's probe against the prompt: the error of the remaining length, prompt over probe (the paper: 2.66, BERT).

A probe is trained and tested on LENGTHWISE_DATA/smollm2: states of SmolLM2-135M's answers without a frequency penalty,
a quarter of which repeat themselves up to the cap. The packaged probe, whose answers have a penalty, is scored on kept
states of 160 prompts that no packaged model was trained on (experiments/results/trail-probe, without their texts, which
are CASTILLO's), or on others:

    python -m experiments.trail_probe prompts.jsonl
    lengthwise probe collect --prompts prompts.jsonl --layers 20 --positions 6 --held-out 1 -o states/
    python -m experiments run trail_probe --set states=states/

The prompt's predictions are recalibrated to the sampling settings: on training answers, or, for the packaged probe, on
the answers to the other half of the prompts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from experiments.figures import figure, save
from experiments.study import Claim, Run, Study, table_of
from lengthwise.files import data_folder, data_home
from lengthwise.intervals import Ratio
from lengthwise.predictors.probe import DEFAULT, load_probe, log_bins
from lengthwise.reports.tables import Table, share
from lengthwise.training.probe.errors_by_age import (
    HEAT,
    JOINT_SMOOTH,
    PROMPT_BY_AGE,
    PROMPT_ONLY,
    Way,
    compare_with_prompt,
)
from lengthwise.training.probe.states import States, learn_correction, read_states
from lengthwise.version import install_line

PAPER_ERROR_RATIO: Final = 2.66
PROMPTS: Final = 400
KEPT: Final = Path(__file__).parent / "results" / "trail-probe"
SHIPPED, ANEW = "packaged probe", "trained anew, no penalty"
_SHOWN: Final = (PROMPT_ONLY, PROMPT_BY_AGE, JOINT_SMOOTH)


@dataclass(frozen=True)
class Grid:
    """States for the packaged probe, the predictor of the prompts, and the epochs of the training."""

    states: Path = KEPT
    predictor: str = "default"
    epochs: int = 12


@dataclass(frozen=True)
class Measured:
    """One probe: its prompts and states, the scores of every way to predict, and heatmaps by way."""

    setting: str
    prompts: int
    states: int
    capped: float
    ways: Sequence[Way]
    heat: Mapping[str, NDArray[np.float64]]

    def way(self, name: str) -> Way:
        """The scores of one way."""
        return next(way for way in self.ways if way.name == name)


def cross_fitted(states: States) -> States:
    """Recalibrate the prompt's predictions of each half of the prompts on the answers to the other half."""
    mu, sigma = states.mu.copy(), states.sigma.copy()
    lower = states.draw < np.median(np.unique(states.draw))
    for half in (lower, ~lower):
        corrected = learn_correction(states.where(~half)).of(states)
        mu[half], sigma[half] = corrected.mu[half], corrected.sigma[half]
    return replace(states, mu=mu, sigma=sigma)


def measure(run: Run, grid: Grid) -> list[Measured]:
    """Train and score a probe on states of the data folder, and score the packaged one on its own."""
    from lengthwise.training.probe.learn import ProbeRecipe, train_probe  # torch

    probe, found = load_probe(DEFAULT), []
    every = read_states(_folder(), grid.predictor, probe.llm)
    recipe = ProbeRecipe(epochs=grid.epochs)
    trained = train_probe(every, log_bins(every.cap), probe.llm, recipe=recipe, name=ANEW, report=run.report)
    found.append(_measured(ANEW, every.where(every.tested), trained.scores, trained.heat))
    states = cross_fitted(read_states(grid.states, grid.predictor, probe.llm))
    found.append(_measured(SHIPPED, states, *compare_with_prompt(states, probe)))
    return found


def _folder() -> Path:
    return data_folder("smollm2", None, "needs the states of SmolLM2")


def _needs(grid: Grid) -> str | None:
    if find_spec("torch") is None:
        return f"needs torch; run: {install_line('train')}"
    home = data_home()
    if home is None or not _folder().is_dir() or not (home / "castillo").is_dir():
        return "needs smollm2/ and castillo/ in the folder that LENGTHWISE_DATA names"
    if not grid.states.is_dir():
        return f"needs the folder {grid.states}"
    return None


def _measured(setting: str, states: States, ways: Sequence[Way], heat: Mapping[str, NDArray[np.float64]]) -> Measured:
    first = np.unique(states.answer, return_index=True)[1]
    capped = float(states.capped[first].mean())
    return Measured(setting, len(np.unique(states.draw)), len(states), capped, ways, heat)


def tables(found: Sequence[Measured]) -> list[Table]:
    """Errors and their ratio to the probe's."""
    columns: list[tuple[str, Any]] = [
        ("", lambda way: way.name),
        ("error, tokens", lambda way: f"{way.overall.mae:.1f}"),
        ("over the probe's", lambda way: "{:.2f} [{:.2f}, {:.2f}]".format(*way.over_joint)),
        ("in 90 %", lambda way: "–" if np.isnan(way.overall.coverage_90) else share(way.overall.coverage_90)),
    ]
    notes = ["Mean absolute error of the remaining length over all states; 95 % intervals over prompts."]
    return [
        table_of(
            f"{each.setting}: {each.prompts:,} prompts, {each.states:,} states, {share(each.capped)} of answers cut",
            [each.way(name) for name in _SHOWN],
            columns,
            notes,
        )
        for each in found
    ]


def claims(found: Sequence[Measured]) -> list[Claim]:
    """The error from the prompt over that of the probe."""
    return [
        Claim(
            "the probe's error, prompt over probe",
            PAPER_ERROR_RATIO,
            Ratio(*each.way(PROMPT_ONLY).over_joint),
            each.setting,
        )
        for each in found
    ]


def draw(found: Sequence[Measured], path: Path) -> None:
    """Write the poster's heatmaps: of the states with a true remaining length, the share predicted to have each."""
    edges = [f"{edge:g}" for edge in HEAT.edges]
    title = "Remaining tokens: true against predicted"
    with figure(len(found), len(_SHOWN), size=(10.0, 0.6 + 3.2 * len(found)), title=title) as (drawing, panels):
        for place, axes in enumerate(panels):
            each, name = found[place // len(_SHOWN)], _SHOWN[place % len(_SHOWN)]
            axes.imshow(each.heat[name].T, origin="lower", cmap="viridis", vmin=0.0, vmax=1.0, aspect="auto",
                        extent=(0, len(HEAT), 0, len(HEAT)))  # fmt: skip
            axes.grid(visible=False)
            axes.set_xticks(range(0, len(edges), 3), edges[::3])
            axes.set_yticks(range(0, len(edges), 3), edges[::3])
            axes.set_title(name, fontsize=9)
            axes.set_xlabel("truly remaining")
            axes.set_ylabel(f"predicted, {each.setting}" if place % len(_SHOWN) == 0 else "")
        save(drawing, path)


def write_prompts(path: Path) -> int:
    """Write a sample of the prompts that no packaged model was trained on; return how many there are."""
    from lengthwise.cli.collect import read_prompts
    from lengthwise.training.probe.hidden_states import hash_fraction

    unseen = [each for each in read_prompts("castillo") if each.split == "test" or hash_fraction(each.key) < 0.2]
    chosen = sorted(unseen, key=lambda each: hash_fraction(f"kept\n{each.key}"))[:PROMPTS]
    records = (
        {"corpus": each.corpus, "prompt_id": each.prompt_id, "split": each.split, "prompt": each.text}
        for each in chosen
    )
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return len(unseen)


STUDY: Study[Grid, list[Measured]] = Study(
    name="trail_probe",
    title="TRAIL: the probe against the prompt",
    question="How much more accurate is the remaining length from a hidden state than from the prompt?",
    paper="TRAIL, arXiv 2410.01035",
    source="LENGTHWISE_DATA/smollm2, kept states of SmolLM2 on CASTILLO's prompts",
    grid=Grid(),
    quick=Grid(epochs=1),
    minutes=(1.5, 0.8),
    serial=True,
    measure=measure,
    tables=tables,
    claims=claims,
    draw=draw,
    needs=_needs,
)


if __name__ == "__main__":
    print(f"{write_prompts(Path(sys.argv[1])):,} prompts are unseen")  # noqa: T201
