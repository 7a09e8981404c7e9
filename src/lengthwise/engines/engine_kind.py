"""Which kind of engine a server is, and what a gateway may add to a request for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from lengthwise.errors import InputError
from lengthwise.lengths import LengthDistribution, LogT, Point

MARKER: Final = "lengthwise"
"""A request with this name in `vllm_xargs` asks a server for its policy. One with our scheduler replies under the same
name in the `kv_transfer_params` of its answer; to any other it is an ordinary request."""

_MAX_SIGMA: Final = 5.0  # a spread of e^5 around the median says nothing about a length
_log = logging.getLogger(__name__)


def xargs_prediction(xargs: Mapping[str, Any], cap: int) -> LengthDistribution | None:
    """Return the prediction in `vllm_xargs`, clamped to 1 to `cap` tokens; None if there is none.

    An invalid value is logged and ignored.
    """
    try:
        if "length_mu" in xargs or "length_sigma" in xargs:
            prediction = LogT(float(xargs["length_mu"]), float(xargs["length_sigma"]), cap)
            return replace(prediction, mu=max(0.0, prediction.mu), sigma=min(prediction.sigma, _MAX_SIGMA))
        if "expected_tokens" in xargs:
            return Point.declared(float(xargs["expected_tokens"]), cap)
    except (InputError, KeyError, TypeError, ValueError, OverflowError) as error:
        _log.warning("no usable prediction in vllm_xargs (%s)", error)
    return None
