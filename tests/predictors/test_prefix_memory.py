"""Prefix memory learns and forgets lengths by prefix, and the compiled structure equals the readable one."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.lengths import LogT, wide_prior
from lengthwise.predictors import LogTPredictions, PredictionInput, load_predictor
from lengthwise.predictors.learner import Learner
from lengthwise.predictors.memory_kernel import MAX_SCOPES, NODE_BYTES, WAYS
from lengthwise.predictors.prefix_memory import MemoryPredictor, PrefixMemory, scopes_of
from lengthwise.prefixes import Scopes
from tests.predictors.memory_reference import ReferenceMemory, Scope

START = LogT(math.log(200), 0.8, 8192)
SMALL = 64 * NODE_BYTES * WAYS


def observed(lengths: Sequence[int], scopes: Scopes, start: LogT = START, *, text: bool = False) -> PrefixMemory:
    memory = PrefixMemory(SMALL)
    for tokens in lengths:
        memory.observe(scopes, start, tokens, text=text)
    return memory


def median(memory: PrefixMemory, scopes: Scopes, start: LogT = START, *, text: bool = False) -> float:
    return memory.predict(scopes, start, text=text).quantile(0.5)


def test_without_evidence_the_starting_prediction_remains() -> None:
    memory = observed([20] * 10, scopes_of("llm", [1, 2, 3]))
    for text in (False, True):
        assert memory.predict(scopes_of("llm", [7, 8]), START, text=text).mu == START.mu
        assert memory.predict(scopes_of("other", [1, 2, 3]), START, text=text).mu == START.mu


def test_a_known_prefix_is_predicted_from_its_lengths_and_more_narrowly() -> None:
    scopes = scopes_of("llm", [1, 2, 3])
    memory = observed([48, 50, 52, 50, 47, 53] * 3, scopes)
    prediction = memory.predict(scopes, START, text=False)
    assert prediction.quantile(0.5) == pytest.approx(50, rel=0.05)
    assert prediction.sigma < START.sigma / 3
    assert memory.predict(scopes_of("llm", [1, 2, 9]), START, text=False).quantile(0.5) < 100


def test_deeper_levels_count_more_than_general_ones() -> None:
    memory = PrefixMemory(SMALL)
    for number in range(40):
        memory.observe(scopes_of("llm", [1, 2]), START, 20, text=False)
        memory.observe(scopes_of("llm", [1, 3 + number % 2 * 10]), START, 1000, text=False)
    assert median(memory, scopes_of("llm", [1, 2])) < 40
    assert median(memory, scopes_of("llm", [1, 3])) > 500


@pytest.mark.parametrize("name", ["tenant", "template", "session"])
def test_tenant_template_and_session_are_separate_levels(name: str) -> None:
    def named(value: str) -> Scopes:
        return scopes_of("llm", (), **{name: value})

    memory = observed([30] * 20, named("a"))
    assert median(memory, named("a")) < 45
    assert memory.predict(named("b"), START, text=False).mu == START.mu


def test_a_template_and_a_session_belong_to_their_tenant() -> None:
    memory = observed([30] * 20, scopes_of("llm", tenant="a", template="t", session="s"))
    assert memory.predict(scopes_of("llm", tenant="b", template="t", session="s"), START, text=False).mu == START.mu


def test_equal_lengths_for_different_texts_outweigh_the_text() -> None:
    rng = np.random.default_rng(0)
    scopes = scopes_of("llm", [1, 2, 3])
    memory = PrefixMemory(SMALL)
    for _ in range(200):
        memory.observe(scopes, LogT(rng.normal(6, 1), 0.5, 8192), 100, text=True)
    short, long = (median(memory, scopes, LogT(mu, 0.5, 8192), text=True) for mu in (5.0, 7.0))
    assert 70 < short < 100 < long < 140


def test_uninformative_prefixes_do_not_worsen_a_good_text_prediction() -> None:
    rng = np.random.default_rng(1)
    memory = PrefixMemory(1 << 20)
    errors, alone = [], []
    for number in range(2000):
        scopes = scopes_of("llm", [1, 2 + number % 50], session=str(number // 4))
        start = LogT(rng.normal(5.5, 0.8), 0.4, 8192)
        y = start.mu + 0.4 * rng.standard_t(3.5)
        errors.append(abs(memory.predict(scopes, start, text=True).mu - y))
        alone.append(abs(start.mu - y))
        memory.observe(scopes, start, round(math.exp(y)), text=True)
    assert np.mean(errors) < 1.01 * np.mean(alone)


def test_a_censored_answer_is_at_least_that_long() -> None:
    scopes = scopes_of("llm", [1])
    complete, cut = observed([100] * 10, scopes), PrefixMemory(SMALL)
    for _ in range(10):
        cut.observe(scopes, START, 100, text=False, censored=True)
    assert median(cut, scopes) > 1.3 * median(complete, scopes)


@pytest.mark.parametrize("text", [False, True])
def test_a_change_of_the_lengths_is_followed(text: bool) -> None:
    rng = np.random.default_rng(2)
    scopes = scopes_of("llm", [1, 2])
    memory = PrefixMemory(SMALL)
    for centre in (math.log(100), math.log(200)):
        for _ in range(150):
            memory.observe(scopes, START, round(math.exp(rng.normal(centre, 0.3))), text=text)
    assert median(memory, scopes, text=text) == pytest.approx(200, rel=0.15)


def test_a_full_memory_replaces_the_least_recently_observed_node() -> None:
    memory = PrefixMemory(SMALL)
    kept = scopes_of("llm", session="kept")
    for number in range(5000):
        memory.observe(scopes_of("llm", session=str(number)), START, 1000, text=False)
        memory.observe(kept, START, 20, text=False)
    assert memory.held <= 64 * WAYS == SMALL // NODE_BYTES
    assert median(memory, kept) < 40
    assert memory.predict(scopes_of("llm", session="0"), START, text=False).mu == START.mu


def test_a_prompt_of_any_size_has_a_bounded_number_of_levels_and_shares_its_prefix() -> None:
    blocks = np.random.default_rng(3).integers(1, 1 << 63, 300_000, dtype=np.uint64)
    memory = observed([30] * 20, scopes_of("llm", blocks, tenant="a", template="b", session="c"))
    assert memory.held <= MAX_SCOPES
    assert median(memory, scopes_of("llm", blocks)) < 45
    assert median(memory, scopes_of("llm", blocks[:50_000])) < 45


def test_predicting_changes_nothing() -> None:
    scopes = scopes_of("llm", [1, 2], tenant="a")
    memory = observed([30, 40, 50], scopes)
    before = memory.state()
    for text in (False, True):
        memory.predict(scopes, START, text=text)
    assert memory.state() == before


def chain() -> st.SearchStrategy[tuple[str | None, list[int], str | None]]:
    names = st.sampled_from([None, "a", "b"])
    return st.tuples(names, st.lists(st.integers(0, 3), max_size=12), names)


@given(
    st.booleans(),
    st.lists(st.tuples(chain(), st.floats(1, 8), st.floats(0.1, 2), st.integers(1, 5000), st.booleans()), max_size=30),
)
def test_the_compiled_structure_equals_the_readable_one(
    text: bool, events: list[tuple[tuple[str | None, list[int], str | None], float, float, int, bool]]
) -> None:
    compiled, readable = PrefixMemory(1 << 20), ReferenceMemory(text=text)
    for (tenant, path, session), mu, sigma, tokens, censored in events:
        hashes = [hash(tuple(path[: depth + 1])) % (1 << 64) for depth in range(len(path))]
        scopes = scopes_of("llm", hashes, tenant=tenant, session=session)
        named = readable_levels(tenant, path, session)
        start = LogT(mu, sigma, 1 << 20)
        found = compiled.predict(scopes, start, text=text)
        # The compiled structure stores float32; the largest difference seen is 2e-3, after a length 49 sigmas off.
        assert (found.mu, found.sigma) == pytest.approx(readable.predict(named, mu, sigma), rel=5e-3, abs=5e-3)
        compiled.observe(scopes, start, tokens, text=text, censored=censored)
        readable.observe(named, mu, sigma, math.log(tokens), censored=censored)


def readable_levels(tenant: str | None, path: Sequence[int], session: str | None) -> list[Scope]:
    """Return the scopes of a request: the first 8 blocks, then 4 per doubling."""
    depths = [
        depth for depth in range(1, len(path) + 1) if depth <= 8 or depth % (2 ** (int(math.log2(depth)) - 2)) == 0
    ]
    blocks: list[Scope] = [("first" if depth == 1 else "block", tuple(path[:depth])) for depth in depths]
    before: list[Scope] = [] if tenant is None else [("tenant", tenant)]
    return [*before, *blocks, *([] if session is None else [("session", (tenant, session))])]


def test_without_numba_the_same_functions_run_interpreted() -> None:
    code = """
import sys
{block}
from lengthwise.lengths import LogT
from lengthwise.predictors.prefix_memory import PrefixMemory, scopes_of
memory, start = PrefixMemory(1 << 16), LogT(5.0, 0.8, 8192)
for number in range(60):
    scopes = scopes_of("llm", [1, 2 + number % 3, 9], session=str(number % 7))
    memory.observe(scopes, start, 10 + 40 * (number % 3), text=number % 2 == 0, censored=number % 5 == 0)
found = memory.predict(scopes_of("llm", [1, 3, 9]), start, text=True)
print(f"{{found.mu:.5f}} {{found.sigma:.5f}}")
"""
    both = [
        subprocess.run([sys.executable, "-c", code.format(block=block)], capture_output=True, text=True, check=True)
        for block in ("", "sys.modules['numba'] = None")
    ]
    assert both[0].stdout == both[1].stdout != ""


def test_a_restored_state_continues_identically() -> None:
    scopes = scopes_of("llm", [1, 2], tenant="a")
    memory, other = observed([30, 40, 50], scopes, text=True), PrefixMemory(SMALL)
    other.restore(memory.state())
    assert other.held == memory.held
    for each in (memory, other):
        each.observe(scopes, START, 60, text=True)
    assert other.predict(scopes, START, text=True) == memory.predict(scopes, START, text=True)
    assert other.state() == memory.state()


def test_a_smaller_memory_keeps_the_newest_of_a_saved_state() -> None:
    large, small = PrefixMemory(1 << 20), PrefixMemory(NODE_BYTES * WAYS)
    for number in range(40):
        large.observe(scopes_of("llm", session=str(number)), START, 20, text=False)
    small.restore(large.state())
    assert small.held == WAYS
    assert median(small, scopes_of("llm", session="39")) < 150
    assert small.predict(scopes_of("llm", session="0"), START, text=False).mu == START.mu


def damaged(memory: PrefixMemory) -> list[bytes]:
    whole = memory.state()
    with np.load(io.BytesIO(whole)) as stored:
        parts = dict(stored)
    bad = [
        {"stats": np.full_like(parts["stats"], np.nan)},
        {"keys": parts["keys"][:-1]},
        {"learned": parts["learned"][:1]},
        {"clock": np.array(-1)},
    ]
    packed = []
    for change in bad:
        out = io.BytesIO()
        np.savez(out, **(parts | change))
        packed.append(out.getvalue())
    return [b"", b"nonsense", whole[:-30], whole[: len(whole) // 2], *packed]


def test_a_damaged_state_is_refused_and_changes_nothing() -> None:
    scopes = scopes_of("llm", [1, 2])
    memory = observed([30, 40, 50], scopes)
    before = memory.state()
    for state in damaged(memory):
        with pytest.raises(InputError, match=r"m\.npz: is (not a saved|a damaged) prefix memory"):
            memory.restore(state, "m.npz")
    assert memory.state() == before


def test_a_state_of_a_newer_format_asks_for_an_update() -> None:
    out = io.BytesIO()
    np.savez(out, format=99)
    with pytest.raises(InputError, match="newer"):
        PrefixMemory(SMALL).restore(out.getvalue())


def test_a_memory_without_space_for_one_set_is_refused() -> None:
    with pytest.raises(InputError, match="a memory of 100 bytes"):
        PrefixMemory(100)


class Twice:
    """Predicts twice the length that the text states."""

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        return LogTPredictions.of([math.log(2 * int(each.text)) for each in inputs], 0.5, 8192.0)


def test_the_predictor_starts_from_history_or_from_a_text_predictor() -> None:
    request = PredictionInput("100", "llm", blocks=[1, 2])
    bare, over_text = MemoryPredictor(), Learner(Twice(), learning=False, memory=True)
    assert bare.predict([request])[0].quantile(0.5) == pytest.approx(wide_prior().quantile(0.5))
    assert over_text.predict([request])[0].quantile(0.5) == pytest.approx(200)
    for _ in range(40):
        bare.observe(request, 100)
        over_text.observe(request, 100)
    assert bare.predict([request])[0].quantile(0.5) == pytest.approx(100, rel=0.1)
    assert over_text.predict([request])[0].quantile(0.5) == pytest.approx(100, rel=0.1)
    new = PredictionInput("50", "llm", blocks=[7])
    assert over_text.predict([new])[0].quantile(0.5) == pytest.approx(50, rel=0.1)


def test_the_mean_of_repeated_answers_moves_with_the_prediction() -> None:
    fast, request = load_predictor("fast"), PredictionInput("Why is the sky blue?", "llm", blocks=[1, 2])
    alone, memory = fast.predict([request]), Learner(fast, learning=False, memory=True)
    assert memory.predict([request]).sample_mean == pytest.approx(alone.sample_mean)
    for _ in range(40):
        memory.observe(request, 10)
    found = memory.predict([request])
    assert found.sample_mean[0] / alone.sample_mean[0] < 0.2
    assert found.sample_std[0] / found.sample_mean[0] == pytest.approx(alone.sample_std[0] / alone.sample_mean[0])


def test_a_predictor_with_memory_is_saved_and_restored() -> None:
    request = PredictionInput("100", "llm", blocks=[1, 2])
    first, second = MemoryPredictor(), MemoryPredictor()
    for _ in range(40):
        first.observe(request, 100)
    second.restore(first.state())
    assert second.predict([request])[0].quantile(0.5) == pytest.approx(100, rel=0.1)
    with pytest.raises(InputError, match=r"old\.npz: is not a saved prefix memory"):
        second.restore(b"nothing", "old.npz")


def test_names_with_lone_surrogates_are_valid() -> None:
    assert len(scopes_of("llm", tenant="\ud800", session="\udfff").names) == 4
