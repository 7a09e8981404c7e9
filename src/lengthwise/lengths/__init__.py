"""What we believe about the length of an answer: immutable values, pure mathematics, no files."""

from lengthwise.lengths.beliefs import TIE_NU, Belief, LogT, Point, Remaining
from lengthwise.lengths.columns import LogTColumns, tail_inflated_expectation
from lengthwise.lengths.contract import DEFAULT_CAP, OUTLIVED_BELOW, LengthDistribution
from lengthwise.lengths.histogram import Histogram
from lengthwise.lengths.prior import wide_prior

__all__ = [
    "DEFAULT_CAP",
    "OUTLIVED_BELOW",
    "TIE_NU",
    "Belief",
    "Histogram",
    "LengthDistribution",
    "LogT",
    "LogTColumns",
    "Point",
    "Remaining",
    "tail_inflated_expectation",
    "wide_prior",
]
