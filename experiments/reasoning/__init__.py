"""How predictions hold when an LLM is asked to reason."""
