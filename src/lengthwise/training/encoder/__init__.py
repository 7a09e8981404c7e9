"""Training of encoder predictors: a transformer reads the prompt, a head predicts the length; exported to ONNX."""
