"""What a predictor learns about a new LLM from a few of its lengths, beside what it knew: nothing is retrained."""

from lengthwise.predictors.adapt.observed import Observed, read_observed
from lengthwise.predictors.adapt.run import Report, adapt_file

__all__ = ["Observed", "Report", "adapt_file", "read_observed"]
