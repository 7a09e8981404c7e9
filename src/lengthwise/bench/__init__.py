"""Measurement on running engines: what a policy gains on real traffic.

Knows the simulator and engines, not the gateway.
"""
