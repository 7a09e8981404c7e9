"""Routers' inner loops, compiled: flat arrays of numbers in, flat arrays of numbers out.

Each file stands for itself, because Numba looks at no other to see whether the code that it has kept is still good.
"""
