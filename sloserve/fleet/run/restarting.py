"""Restarts this process with its own command and process id."""

import logging
import os
import signal
import sys
from typing import Final, NoReturn

_HELD: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def hold_signals() -> None:
    """Have signals wait until the process can take them: by default they would end it, and leave its engines."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def restart() -> NoReturn:
    """Run the command of this process again, with the code and the files as they are now."""
    hold_signals()
    logging.shutdown()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
