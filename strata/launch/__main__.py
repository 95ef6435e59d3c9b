"""``python -m strata.launch`` is ``strata-run``."""

import sys

from strata.launch.main import main

if __name__ == "__main__":
    sys.exit(main())
