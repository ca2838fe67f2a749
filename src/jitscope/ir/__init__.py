"""Programs as values, and their identity: capture, the walk over equations, fingerprints."""
