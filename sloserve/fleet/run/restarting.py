"""Restarts this process with its own command and process id."""

import logging
import os
import signal
import sys
from typing import NoReturn


def restart() -> NoReturn:
    """Run the command of this process again, with the code and the files as they are now."""
    # A signal that comes before the new image can take it waits: by default SIGHUP would end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    logging.shutdown()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
