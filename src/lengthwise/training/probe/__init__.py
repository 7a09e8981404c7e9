"""Training of probes: a small network that predicts the remaining length from hidden states of the LLM."""
