"""Training of the fast predictor: a small network over word tables, distilled from an encoder."""
