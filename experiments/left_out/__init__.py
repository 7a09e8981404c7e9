"""An LLM that a predictor has never heard of, after `adapt`."""
