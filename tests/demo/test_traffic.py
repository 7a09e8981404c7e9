"""What both sides of the demo receive."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.demo.traffic import MAX_LOAD, RECORDED, TRUE, RaceTraffic, _declared
from lengthwise.errors import InputError
from lengthwise.lengths import wide_prior
from lengthwise.simulator.fleet import Fleet
from lengthwise.traffic.log import TrafficLog
from lengthwise.traffic.rows import RequestRow

FLEET = Fleet.parse("1*llama-3-8b@a100").limited_to(max_num_seqs=4)


@pytest.fixture(scope="module")
def castillo(tmp_path_factory: pytest.TempPathFactory) -> RaceTraffic:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LENGTHWISE_DATA", raising=False)
        return RaceTraffic.of_castillo(FLEET, None, seed=0)


def sent(traffic: RaceTraffic, row: int, predictor: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(traffic.request(row, predictor)[1])
    return body


def test_a_request_has_its_prompt_and_its_forced_length_and_no_prediction_but_the_gateways_own(
    castillo: RaceTraffic,
) -> None:
    body = sent(castillo, 3, "fast")
    assert body["messages"] == [{"role": "user", "content": castillo.workload.table["prompt"][3].as_py()}]
    assert body["vllm_xargs"] == {"simulated_tokens": int(castillo.workload.output_tokens[3])}
    assert "nvext" not in body
    assert "ignore_eos" not in body


def test_true_lengths_are_declared_and_none_declares_the_same_wide_prior_for_all(castillo: RaceTraffic) -> None:
    assert sent(castillo, 3, TRUE)["nvext"] == {"agent_hints": {"osl": int(castillo.workload.output_tokens[3])}}
    declared = [sent(castillo, row, "none")["vllm_xargs"] for row in (3, 4)]
    for each in declared:
        assert (each["length_mu"], each["length_sigma"]) == (wide_prior().mu, wide_prior().sigma)


def test_the_shortest_third_is_a_third_and_no_longer_than_the_others(castillo: RaceTraffic) -> None:
    short = castillo.thirds == 0
    lengths = castillo.workload.output_tokens
    assert 0.32 < short.mean() < 0.35
    assert lengths[short].max() <= lengths[~short].min()


def test_gaps_are_in_units_of_the_mean_gap(castillo: RaceTraffic) -> None:
    assert castillo.gaps.mean() == pytest.approx(1.0)
    assert (castillo.gaps >= 0).all()


def rows(count: int, seconds: float) -> list[RequestRow]:
    made = []
    for number in range(count):
        at = 1000.0 + seconds * number / count
        made.append(
            RequestRow(
                at, at + 0.1, at + 0.3, at + 0.3 + 0.02 * (10 + number), "ok", 200, "stop", llm="my-model",
                engine=f"engine-{number % 2}", policy="fcfs", input_tokens=20, output_tokens=10 + number,
                mu=math.log(50.0) if number else None, sigma=0.7 if number > 1 else 0.0 if number else None,
                predictor="fast", source="predictor",
            )
        )  # fmt: skip
    return made


def logged(folder: Path, given: list[RequestRow]) -> Path:
    with TrafficLog(folder, max_bytes=1 << 20) as log:
        for row in given:
            log.add(row)
    return folder


def test_a_log_is_replayed_at_its_own_load_on_the_engines_that_served_it_with_its_own_predictions(
    tmp_path: Path,
) -> None:
    traffic = RaceTraffic.of_log(logged(tmp_path / "log", rows(60, 60.0)), None, None, None)
    assert traffic.model == "my-model"
    assert len(traffic.fleet) == 2
    assert traffic.load == pytest.approx(min(MAX_LOAD, max(0.3, 59 / 59.0 / traffic.capacity_per_s)), rel=0.05)
    without, hinted, predicted = (sent(traffic, row, RECORDED)["vllm_xargs"] for row in (0, 1, 2))
    assert without["length_mu"] == wide_prior().mu
    assert hinted["expected_tokens"] == pytest.approx(50.0)
    assert predicted["length_sigma"] == 0.7
    assert [each["simulated_tokens"] for each in (without, hinted, predicted)] == [10, 11, 12]


def test_a_log_that_is_none_or_too_short_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        RaceTraffic.of_log(tmp_path / "nothing", None, None, None)
    with pytest.raises(InputError, match="too few"):
        RaceTraffic.of_log(logged(tmp_path / "log", rows(3, 3.0)), None, None, None)


@given(mu=st.floats(0, 12), sigma=st.floats(0, 5))
def test_a_logged_prediction_is_declared_as_it_was_made(mu: float, sigma: float) -> None:
    declared = _declared(mu, sigma)
    if sigma > 0:
        assert declared == {"length_mu": mu, "length_sigma": sigma}
    else:
        assert math.log(declared["expected_tokens"]) == pytest.approx(mu, abs=1e-9)
    assert np.isfinite(list(declared.values())).all()
