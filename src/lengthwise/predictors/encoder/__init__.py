"""Encoder predictors: a transformer reads the prompt, a head says the prediction. Trained with torch, served without."""
