"""Chains of calls become loops inside one executable: ``Policy(rolled=True)``."""
