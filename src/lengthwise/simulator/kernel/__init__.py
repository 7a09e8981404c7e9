"""The engine of `simulator.engine` compiled with Numba: the same outcome bit for bit, some hundred times faster.

It contains no policy. Where a decision is the policy's, it returns a question, and `host` asks the policy.
"""
