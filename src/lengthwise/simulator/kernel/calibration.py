"""What predicted lengths are worth under `lengthwise`, `slo` and `ontime`: the rules of `policies.calibration`."""

from __future__ import annotations

import numpy as np

from lengthwise.compiled import inlined as compiled
from lengthwise.compiled import inlined_copies
from lengthwise.policies import calibration
from lengthwise.simulator.kernel.access import bin_at, calibration_at, cap_at, median_at, prediction_of, request_at
from lengthwise.simulator.kernel.records import Record


@compiled
def _bin_of(tokens: float) -> int:
    return int(np.searchsorted(calibration.EDGES, tokens, "right"))


_, _, calibrated_work, *_, _record_length = inlined_copies(
    calibration.pooled_ratio,
    calibration.ratio,
    calibration.calibrated_work,
    calibration.count_length,
    calibration.fit_line,
    calibration.record_length,
    bin_of=_bin_of,
)


@compiled
def work(engine: Record, row: int) -> tuple[float, bool]:
    """Work of a request by its current prediction, and whether it has one."""
    at = prediction_of(engine, row)
    place = bin_at(engine, at).value
    tokens = calibrated_work(calibration_at(engine, 0), median_at(engine, at).value, place, cap_at(engine, at).value)
    return tokens, place != calibration.UNPREDICTED


@compiled
def finished(engine: Record, row: int) -> None:
    """Record a true length."""
    at = prediction_of(engine, row)
    place, tokens = bin_at(engine, at).value, request_at(engine, row).output
    _record_length(calibration_at(engine, 0), median_at(engine, at).value, place, tokens)
