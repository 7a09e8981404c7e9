"""Lengthwise on a Ray cluster: sweeps as remote tasks."""
