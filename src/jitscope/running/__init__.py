"""Whole scripts and the command line: `python -m jitscope`, `install()`."""
