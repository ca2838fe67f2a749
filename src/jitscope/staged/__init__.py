"""`outermost_jit(staged=True)`: a program as a list of separately compiled executables."""
