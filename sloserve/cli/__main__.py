"""``python -m sloserve.cli``."""

from sloserve.cli import main

if __name__ == "__main__":
    main()
