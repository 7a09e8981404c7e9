"""Length distributions of answers: values and fitting. Pure mathematics, no files."""

from lengthwise.lengths.columns import LogTColumns
from lengthwise.lengths.distributions import (
    DEFAULT_CAP,
    After,
    BaseDistribution,
    Histogram,
    LengthDistribution,
    LogT,
    Point,
    Remaining,
    wide_prior,
)
from lengthwise.lengths.fit import fit_logt, fit_rows
from lengthwise.lengths.log_t import OUTLIVED_BELOW, TIE_NU

__all__ = [
    "DEFAULT_CAP",
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
    "wide_prior",
]
