"""Counts bodies, decides how each is called, and rewrites the program accordingly."""
