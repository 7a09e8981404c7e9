"""The engine of `simulator.engine` compiled with Numba: the same outcome bit for bit, some hundred times faster.

Where the policy decides, it returns a code, and `host` asks the policy; the policies whose decisions are too frequent
for that are compiled here as well (`policy`).
"""
