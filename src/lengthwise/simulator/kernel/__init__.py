"""The engine of `simulator.engine` compiled with Numba: the same outcome bit for bit, some hundred times faster.

It contains no policy. Where the policy decides, it returns a code, and `host` asks the policy.
"""
