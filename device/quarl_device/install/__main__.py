"""`python -m quarl_device.install`: from the wheel in a bundle, where nothing is installed yet."""

import sys

from quarl_device.install.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
