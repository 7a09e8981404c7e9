"""What an LLM states about the length of its answers is asked, kept and scored."""

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


def test_an_llm_behind_a_url_is_asked_about_every_prompt(stating_llm: StatingLlm) -> None:
    kept = ask(SAMPLES, AskPredictor(stating_llm.url))
    assert kept["reply"].to_pylist() == ["0: because", "1: because", "2: because", "3: because"]
    assert [body["model"] for body in stating_llm.bodies] == ["tiny"] * 4
    assert score(kept, SAMPLES).median_stated == 2  # a stated 0 is no length


def test_errors_are_of_the_prompts_with_a_stated_length() -> None:
    found = score(replies("[100]: a", "I cannot say.", "[300]: c", "[500]: d"), SAMPLES)
    assert (found.prompts, found.stated) == (4, 3)
    assert found.mae == pytest.approx((5 + 15 + 80) / 3)
    assert found.mse == pytest.approx((25 + 225 + 6400) / 3)
    assert found.tau == pytest.approx(1.0)
    assert found.mae_interval[0] <= found.mae <= found.mae_interval[1]
    assert table(found, PAPER_PROMPT_METHOD).rows[1][2] == "3 of 4"


def test_an_llm_that_states_nothing_has_no_error() -> None:
    found = score(replies("no", "no", "no", "no"), SAMPLES)
    assert (found.stated, str(found.mae), str(found.tau)) == (0, "nan", "nan")


def test_replies_to_other_prompts_are_refused() -> None:
    other = samples_of([1], corpus="Apps")
    with pytest.raises(InputError, match="no reply is to a prompt"):
        score(replies("[1]: a", samples=other), SAMPLES)


def test_the_kept_replies_are_of_one_llm() -> None:
    assert len(set(read()["llm"].to_pylist())) == 1
