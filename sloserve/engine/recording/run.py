"""What the processes of one server share, so that their recordings belong together: a name, and the key of the hashes.

The process that starts the others puts both into its environment, which they inherit. The key is in no file.
"""

import multiprocessing
import os
from dataclasses import dataclass
from typing import Final

from sloserve.engine.recording.folder import run_name
from sloserve.engine.recording.salt import KEY_BYTES, Salt

VARIABLE: Final = "SLOSERVE_RECORDING"
"""Environment variable with the name of this server's recordings and the key of their hashes."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run of a server.

    Args:
        name: Beginning of the names of its recordings.
        salt: Hashes of its recordings.
    """

    name: str
    salt: Salt


def begin_run(now_s: float) -> None:
    """Give this process, and the processes that it will start, the name and the key of a new run.

    A process that was started through ``multiprocessing``, as API processes and engines are, keeps what its starter
    gave it.

    Args:
        now_s: The present time, in epoch seconds.
    """
    if multiprocessing.parent_process() is None or VARIABLE not in os.environ:
        os.environ[VARIABLE] = f"{run_name(now_s)} {os.urandom(KEY_BYTES).hex()}"


def present_run(now_s: float) -> RecordedRun:
    """Return the run that this process is a part of; one of its own if its starter began none.

    Args:
        now_s: The present time, in epoch seconds.
    """
    name, _, key = os.environ.get(VARIABLE, "").partition(" ")
    try:
        key_bytes = bytes.fromhex(key)
    except ValueError:
        key_bytes = b""
    if not name or len(key_bytes) != KEY_BYTES:
        return RecordedRun(run_name(now_s), Salt())
    return RecordedRun(name, Salt(key_bytes))
