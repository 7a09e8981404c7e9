"""Encoder predictors: a transformer reads the prompt, a head says the belief. Trained with torch, served without."""
