"""Loss curves of trainings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from experiments.castillo import STUDY, CastilloGrid, measure
from experiments.castillo.loss_curves import Curves
from experiments.castillo.rows import LLMS
from experiments.study import Run
from lengthwise.errors import InputError
from lengthwise.simulator.tasks import ResultCache
from tests.experiments.samples import check_output


def test_the_rise_of_a_papers_network_is_its_last_loss_over_its_smallest() -> None:
    about = {"llm": LLMS[0], "rule": "castillo", "target": "mean", "width": 200}
    rows = [
        {
            **about,
            "seed": seed,
            "epoch": epoch + 1,
            "held_loss": loss,
            "learn_loss": 0.1,
            "learn_metric": 1.0,
            "held_metric": 0.5,
        }
        for seed, losses in enumerate([(3.0, 2.0, 4.0), (3.0, 2.0, 2.0)])
        for epoch, loss in enumerate(losses)
    ]
    found = Curves.of(pa.Table.from_pylist(rows[::-1]), LLMS[0], "mean", 200)
    assert found.rises == pytest.approx(np.array([2.0, 1.0]))
    with pytest.raises(InputError, match="no loss curve"):
        Curves.of(pa.Table.from_pylist(rows), LLMS[1], "mean", 200)


def test_the_study_shows_tables_and_figure_7(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    found = measure(Run(ResultCache(tmp_path / "cache")), CastilloGrid(predictor="constant"))
    output = STUDY.output(found)
    check_output(output)
    assert output.html().count("data:image/png") == 1
