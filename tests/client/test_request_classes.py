"""Classes and limits in `vllm_xargs`: what is read, and what is logged and ignored."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.client.request_classes import (
    PRIORITIES,
    ClassConfig,
    LatencyLimitsConfig,
    clamped_priority,
    xargs_limits,
    xargs_priority,
)
from lengthwise.errors import InputError
from lengthwise.policies.job import LIMIT_FIELDS, MAX_LIMIT_S, MIN_LIMIT_S
from lengthwise.settings import validated

CLASSES = {"chat": ClassConfig(ttft_s=1.0), "batch": ClassConfig(priority=10)}
USELESS = [0, -1, math.nan, -math.inf, "soon", "", True, [], {}]


@pytest.mark.parametrize("name", LIMIT_FIELDS)
@pytest.mark.parametrize("value", USELESS)
def test_a_limit_that_is_no_number_above_0_is_logged_and_ignored(
    name: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert xargs_limits({name: value}) == {}
    assert name in caplog.text


@given(st.dictionaries(st.sampled_from(LIMIT_FIELDS), st.floats(min_value=0.0, exclude_min=True)))
def test_limits_are_clamped(xargs: dict[str, float]) -> None:
    found = xargs_limits(xargs)
    assert found.keys() == xargs.keys()
    assert all(MIN_LIMIT_S <= limit <= MAX_LIMIT_S for limit in found.values())


def test_the_priority_of_a_gateway_comes_before_that_of_the_class() -> None:
    assert xargs_priority({"request_class": "batch"}, CLASSES) == (10, CLASSES["batch"])
    assert xargs_priority({"request_class": "batch", "priority": -3}, CLASSES) == (-3, CLASSES["batch"])
    assert xargs_priority({}, CLASSES) == (None, ClassConfig())


@pytest.mark.parametrize("xargs", [{"request_class": "bach"}, {"request_class": 7}, {"priority": "high"}])
def test_an_unknown_class_and_a_useless_priority_are_logged_and_ignored(
    xargs: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert xargs_priority(xargs, CLASSES) == (None, ClassConfig())
    assert "vllm_xargs" in caplog.text


@given(st.integers())
def test_a_priority_is_clamped_to_32_bits(priority: int) -> None:
    assert clamped_priority(priority) in PRIORITIES
    assert clamped_priority(priority) == priority or priority not in PRIORITIES


@pytest.mark.parametrize("kind", [ClassConfig, LatencyLimitsConfig])
@pytest.mark.parametrize("name", LIMIT_FIELDS)
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 1e-9])
def test_a_configured_limit_outside_its_range_is_an_error_with_its_name(kind: type, name: str, value: float) -> None:
    with pytest.raises(InputError, match=name):
        validated(kind, {name: value}, source="file", section="classes")
