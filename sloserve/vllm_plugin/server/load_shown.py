"""What watchers of a server see beside its requests: its versions, its load now and over ten minutes, and its GPUs."""

import os
from collections.abc import Sequence
from typing import Any

import sloserve
from sloserve.core.clock import Clock
from sloserve.engine.metrics import load_history
from sloserve.engine.metrics.engine_page import find_pages
from sloserve.engine.metrics.load_sampler import LoadSampler
from sloserve.engine.metrics.process_page import Boards
from sloserve.scheduler.settings import ADMIN_KEY
from sloserve.vllm_plugin.server.gpus import Gpus, gpus_of
from sloserve.vllm_plugin.versions import installed_vllm


class LoadShown:
    """The load of a server as one API process shows it; samples are taken only where watchers are possible."""

    def __init__(self, vllm_config: Any, boards: Boards, classes: Sequence[str], clock: Clock) -> None:
        """Begin to take samples, if the operator has set an admin key.

        Args:
            vllm_config: Configuration of the engine.
            boards: Boards of the API processes.
            classes: Names of the service classes.
            clock: Clock of this process.
        """
        self._boards, self._clock = boards, clock
        versions = {"version": sloserve.__version__, "vllm": installed_vllm()}
        self._server = {**versions, "started_s": round(clock.now_s(), 3)}
        gpus = Gpus(gpus_of(getattr(vllm_config, "parallel_config", None)))
        self._sampler = LoadSampler(
            boards.own.history, classes, lambda: [page.snapshot() for page in find_pages()], clock, gpus
        )
        if os.environ.get(ADMIN_KEY):
            self._sampler.start()

    def parts(self) -> dict[str, Any]:
        """Return the parts of a view that do not depend on the engines' frames."""
        latest = self._rows(1)
        return {
            "server": self._server,
            "load": dict(zip(load_history.ROW, latest[0], strict=True)) if latest else None,
            "gpus": self._sampler.gpus,
        }

    def history(self) -> dict[str, Any]:
        """Return the load of the last ten minutes, which a watcher gets once, when it connects."""
        return {"columns": list(load_history.ROW), "rows": self._rows()}

    def stop(self) -> None:
        self._sampler.stop()

    def _rows(self, *most: int) -> list[list[Any]]:
        now_s = self._clock.monotonic_s()
        rings = [board.history for board in self._boards.look()]
        return load_history.rows(rings, self._clock.now_s() - now_s, now_s, *most)
