"""Finds repeated runs of equations in code that nobody annotated, and turns them into calls."""
