"""What a pool starts in an agent's place.

It ends with the status that it is given, or at the first order to end (stay), at the second (twice), or at none
(stubborn). With ``slow`` it says when it reads the fleet's file again, and ends a second after it was told to.
"""

import os
import signal
import sys
import time

_ORDERS = {"stay": 1, "twice": 2, "stubborn": 100}


def _say(text: str) -> None:
    """Print a line in the handler of a signal. ``print`` would raise where the signal comes while it already writes."""
    os.write(1, f"{text}\n".encode())


def slow() -> None:
    """Stay as an agent with streams does."""
    ending: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, frame: _say("read again"))
    signal.signal(signal.SIGTERM, lambda number, frame: ending.append(number))
    print("started", flush=True)
    for _ in range(30_000):
        if ending:
            break
        time.sleep(0.02)
    time.sleep(1.0)
    print("ended", flush=True)


def _ordered(*_: object) -> None:
    _say("ordered to end")
    _orders.append(1)
    if len(_orders) >= _ORDERS[sys.argv[1]]:
        sys.exit(0)


_orders: list[int] = []

if __name__ == "__main__":
    if sys.argv[1] == "slow":
        slow()
        sys.exit(0)
    if sys.argv[1] not in _ORDERS:
        print("wrong: the agent's settings")
        sys.exit(int(sys.argv[1]))
    signal.signal(signal.SIGHUP, lambda *_: _say("read again"))
    signal.signal(signal.SIGTERM, _ordered)
    print(f"pid {os.getpid()}", flush=True)
    time.sleep(600)
