"""Training of the predictors that `lengthwise.predictors` serves; needs the `train` extra (torch, transformers)."""
