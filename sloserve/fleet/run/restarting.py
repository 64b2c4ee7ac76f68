"""Restarts this process with its own command and process id."""

import logging
import os
import sys
from typing import NoReturn


def restart() -> NoReturn:
    """Run the command of this process again, with the code and the files as they are now."""
    logging.shutdown()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
