"""What we predict about the length of an answer: immutable values, pure mathematics, no files."""

from lengthwise.lengths.columns import LogTColumns, tail_inflated_expectation
from lengthwise.lengths.contract import DEFAULT_CAP, OUTLIVED_BELOW, LengthDistribution
from lengthwise.lengths.distributions import TIE_NU, BaseDistribution, LogT, Point, Remaining
from lengthwise.lengths.families import FAMILIES
from lengthwise.lengths.fit import fit_logt, fit_rows
from lengthwise.lengths.histogram import Histogram
from lengthwise.lengths.known_prefix import After
from lengthwise.lengths.prior import wide_prior

__all__ = [
    "DEFAULT_CAP",
    "FAMILIES",
    "OUTLIVED_BELOW",
    "TIE_NU",
    "After",
    "BaseDistribution",
    "Histogram",
    "LengthDistribution",
    "LogT",
    "LogTColumns",
    "Point",
    "Remaining",
    "fit_logt",
    "fit_rows",
    "tail_inflated_expectation",
    "wide_prior",
]
