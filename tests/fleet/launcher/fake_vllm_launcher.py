"""Stands for the launcher that has vLLM imported: forks stand-in engines, each with a child of its own."""

import os
import time

from sloserve.core.process_death import die_with_named_parent
from sloserve.vllm_plugin import launcher


def serve() -> None:
    os.register_at_fork(after_in_child=die_with_named_parent)
    if os.fork() == 0:
        time.sleep(600)
    from tests.fleet.stand_in.server import main

    main()


if __name__ == "__main__":
    launcher.main(preload=lambda: None, engine=serve)
