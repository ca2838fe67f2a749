"""Benchmarks of jitscope against plain JAX; see `python -m benchmarks --help`.

A *program* is a computation with its arguments, a *contender* a way to compile it, a *measurement*
one process that compiles and runs one program under one contender and prints one JSON line.
"""
