"""A predictor without a transformer: word tables and a small network, in NumPy; its training needs torch."""

from lengthwise.predictors.fast.predictor import KIND, FastPredictor, load_fast

__all__ = ["KIND", "FastPredictor", "load_fast"]
