"""The fast predictor: word tables and a small network in NumPy, without a transformer."""

from lengthwise.predictors.fast.predictor import KIND, FastPredictor, load_fast

__all__ = ["KIND", "FastPredictor", "load_fast"]
