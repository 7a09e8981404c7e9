"""Lengths that an LLM states about its answers are requested, stored and scored."""

from __future__ import annotations

import pyarrow as pa
import pytest

from experiments.castillo.paper import PAPER_PROMPT_METHOD
from experiments.castillo.prompt_method import ask, read, score, table
from lengthwise.errors import InputError
from lengthwise.predictors.ask import AskPredictor
from lengthwise.workloads import LengthSamples
from tests.conftest import StatingLlm
from tests.experiments.castillo.test_rows import samples_of

SAMPLES = samples_of([100, 110], [200, 220], [300, 330], [400, 440])


def replies(*texts: str, samples: LengthSamples = SAMPLES) -> pa.Table:
    return samples.table.select(["llm", "corpus", "prompt_id"]).append_column("reply", pa.array(texts))


def test_every_prompt_is_sent_to_the_llm_behind_a_url(stating_llm: StatingLlm) -> None:
    kept = ask(SAMPLES, AskPredictor(stating_llm.url))
    assert sorted(kept["reply"].to_pylist()) == ["0: because", "1: because", "2: because", "3: because"]
    assert sorted(kept["prompt_id"].to_pylist()) == sorted(SAMPLES.table["prompt_id"].to_pylist())
    assert [body["model"] for body in stating_llm.bodies] == ["tiny"] * 4
    assert score(kept, SAMPLES).stated == 3  # a stated 0 is no length


def test_only_prompts_without_a_reply_are_sent_and_every_batch_is_stored(stating_llm: StatingLlm) -> None:
    stored: list[pa.Table] = []
    predictor = AskPredictor(stating_llm.url)
    first = ask(SAMPLES, predictor, limit=3, store=stored.append)
    assert len(first) == len(stored[-1]) == 3
    everything = ask(SAMPLES, predictor, known=first, store=stored.append)
    assert everything.slice(0, 3) == first
    assert len(everything) == len(set(everything["prompt_id"].to_pylist())) == len(stored[-1]) == 4
    assert len(stating_llm.bodies) == 4


def test_replies_of_two_llms_are_not_mixed(stating_llm: StatingLlm) -> None:
    other = replies("a", "b", "c", "d").set_column(0, "llm", pa.array(["another"] * 4))
    with pytest.raises(InputError, match="another LLM"):
        ask(SAMPLES, AskPredictor(stating_llm.url), known=other)


def test_errors_are_of_the_prompts_with_a_stated_length() -> None:
    found = score(replies("[100]: a", "I cannot say.", "[300]: c", "[500]: d"), SAMPLES)
    assert (found.prompts, found.stated) == (4, 3)
    assert found.mae == pytest.approx((5 + 15 + 80) / 3)
    assert found.mse == pytest.approx((25 + 225 + 6400) / 3)
    assert found.mae_interval[0] <= found.mae <= found.mae_interval[1]
    assert table(found, PAPER_PROMPT_METHOD).rows[1][2] == "3 of 4"


def test_an_llm_that_states_nothing_has_no_error() -> None:
    found = score(replies("no", "no", "no", "no"), SAMPLES)
    assert (found.stated, str(found.mae), str(found.mae_interval)) == (0, "nan", "(nan, nan)")


def test_replies_to_other_prompts_are_refused() -> None:
    other = samples_of([1], corpus="Apps")
    with pytest.raises(InputError, match="no reply is to a prompt"):
        score(replies("[1]: a", samples=other), SAMPLES)


def test_the_kept_replies_are_of_one_llm() -> None:
    assert len(set(read()["llm"].to_pylist())) == 1
