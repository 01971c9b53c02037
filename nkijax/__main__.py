"""`python -m nkijax`."""

import sys

from nkijax.cli import main

if __name__ == "__main__":
    sys.exit(main())
