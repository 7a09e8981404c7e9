"""Encoder predictors: a transformer reads the prompt, a head predicts the length. Served by ONNX Runtime, no torch."""
