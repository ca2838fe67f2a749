"""``python -m jitscope``."""

from .running.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
