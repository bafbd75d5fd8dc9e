"""What every test starts from."""

import signal

# A shell that runs the suite in the background has it ignore Ctrl-C, and every process that a test starts inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
