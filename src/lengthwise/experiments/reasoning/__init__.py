"""How beliefs hold when an LLM is asked to reason."""
