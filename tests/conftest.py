"""What every test starts from."""

import signal

# A shell that runs the suite in the background has it ignore Ctrl-C, which every process that a test starts inherits.
signal.signal(signal.SIGINT, signal.default_int_handler)
