"""``python -m pyro_dgp``."""

import sys

from pyro_dgp.comparison.cli import main

if __name__ == "__main__":
    sys.exit(main())
