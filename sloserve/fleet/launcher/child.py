"""``python -m sloserve.fleet.launcher.child PARENT MODULE ...``: runs a module in a process that dies with its parent.

PARENT is the process id of the starting process. An engine that is started so has no other way to learn it in time.
"""

import runpy
import sys

from sloserve.core.process_death import die_with


def main() -> None:
    parent, module = int(sys.argv[1]), sys.argv[2]
    die_with(parent)
    sys.argv[1:3] = []
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
