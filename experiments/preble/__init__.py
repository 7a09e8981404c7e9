"""Preble's routing and its length-aware extension on simulated engines, ours beside the paper's."""
