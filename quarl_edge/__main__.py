"""`python -m quarl_edge`."""

import sys

from quarl_edge.cli import main

sys.exit(main())
