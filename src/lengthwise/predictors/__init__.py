"""From a prompt and an LLM's name to a belief about the answer's length."""

from lengthwise.predictors.contract import Beliefs, BinBeliefs, LengthPredictor, LogTBeliefs, PredictionInput

__all__ = ["Beliefs", "BinBeliefs", "LengthPredictor", "LogTBeliefs", "PredictionInput"]
