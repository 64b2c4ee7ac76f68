"""Record what an API process or a gateway alone knows: refusals, and stop strings found.

Each API process has a recording of its own beside the recordings of its server's engines, with the same key for the
hashes of tenants. A fleet's gateway has one with a key of its own. A request that is not refused, and has no stop
string, costs nothing here.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

import sloserve
from sloserve.core.clock import Clock
from sloserve.core.errors import BodyTooLarge, ConfigError, QueueFull, RateLimited, ShuttingDown, SloServeError
from sloserve.core.slo import SLO
from sloserve.engine.recording.events import (
    BODY_TOO_LARGE,
    FORMAT,
    FRONT_END,
    INVALID,
    STOPPING,
    TENANT_LIMIT,
    RefusedRequest,
    SegmentHead,
    StopStringFound,
)
from sloserve.engine.recording.folder import recordings_folder, trim
from sloserve.engine.recording.recorder import Recorder
from sloserve.engine.recording.run import present_run
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.scheduler.registry import policy_text
from sloserve.scheduler.settings import PluginSettings
from sloserve.wire import errors

logger = logging.getLogger(__name__)

_SETTINGS: Final = ("classes", "default_class", "admission")
"""Settings of a recording: the ones that name its classes, and that decide what is refused."""


_UNQUEUED: Final[Mapping[type[SloServeError], str]] = {
    RateLimited: TENANT_LIMIT,
    BodyTooLarge: BODY_TOO_LARGE,
    ShuttingDown: STOPPING,
}
"""Reasons of errors that no queue caused, for which no header of a response has a word."""


def reason_of(error: SloServeError) -> str:
    """Return why ``error`` refuses a request, as one of :data:`~sloserve.engine.recording.events.REFUSALS`."""
    if isinstance(error, QueueFull) and error.of_tenant:
        return TENANT_LIMIT
    return errors.reason(error) or _UNQUEUED.get(type(error), INVALID)


class RecordedFrontEnd:
    """Records the refusals of one process, and the stop strings that it finds."""

    @classmethod
    def begin(cls, settings: PluginSettings, stem_of: Callable[[str], str], clock: Clock) -> "RecordedFrontEnd | None":
        """Begin a recording; ``None`` if the settings ask for none, or if it cannot begin, which is logged.

        Args:
            settings: Settings of the server.
            stem_of: Returns the beginning of the names of its files for the name of the server's recordings.
            clock: Clock of this process.
        """
        if not settings.record_mib:
            return None
        try:
            return cls(settings, stem_of, clock)
        except (ConfigError, OSError) as error:
            logger.warning("what this process refuses is not recorded: %s", error)
            return None

    def __init__(self, settings: PluginSettings, stem_of: Callable[[str], str], clock: Clock) -> None:
        """Create the first segment.

        Raises: ConfigError, OSError if it cannot be created.
        """
        run = present_run(clock.now_s())
        self._salt, self._clock, self._settings = run.salt, clock, settings
        self._class_id = _numbers(settings)
        folder, most_bytes = recordings_folder(settings.record_folder), settings.record_mib << 20
        trim(folder, most_bytes, clock.now_s())
        self._recorder = Recorder(
            folder,
            stem_of(run.name),
            most_bytes,
            self._head,
            clock,
        )

    def follow(self, settings: PluginSettings) -> None:
        """State other settings where the next segments begin."""
        self._settings, self._class_id = settings, _numbers(settings)

    def _head(self) -> SegmentHead:
        settings, facts = self._settings, {"sloserve": sloserve.__version__}
        config = settings.as_config()
        kept = {name: config[name] for name in _SETTINGS}
        policy = policy_text(settings.policy, settings.policy_options)
        return SegmentHead(FORMAT, self._clock.now_s(), facts, kept, policy, None, 0, [], FRONT_END)

    def refused(
        self,
        reason: str,
        at_s: float,
        tenant: str | None,
        slo: SLO | None = None,
        asked: ArrivingRequest | None = None,
        model: str = "",
    ) -> None:
        """Record a request that was refused.

        Args:
            reason: One of :data:`~sloserve.engine.recording.events.REFUSALS`.
            at_s: When the request arrived, in epoch seconds.
            tenant: Name of the tenant.
            slo: SLO of the request; ``None`` if it was refused before that was read.
            asked: What else is known of it; ``None`` for nothing.
            model: Name of the model that it asked for, if the process serves several.
        """
        targets = None if slo is None else slo.targets
        self._recorder.add(
            RefusedRequest(
                at_s,
                reason,
                None if slo is None else self._class_id.get(slo.slo_class.name),
                None if targets is None else targets.ttft_s,
                None if targets is None else targets.tpot_s,
                None if targets is None else targets.e2e_s,
                None if targets is None else targets.tds,
                None if asked is None else asked.prompt_tokens,
                None if asked is None else asked.max_tokens,
                None if asked is None else asked.output_tokens,
                self._salt.name(tenant),
                model,
            )
        )
        self._recorder.write_soon()

    def stop_string_found(self, engine_request_id: str) -> None:
        """Record that a stop string ends a request, which is named as in the engine."""
        self._recorder.add(StopStringFound(self._clock.now_s(), self._salt.name(engine_request_id)))
        self._recorder.write_soon()

    def close(self) -> None:
        """Write what there is, and end the recording."""
        self._recorder.close()


def _numbers(settings: PluginSettings) -> dict[str, int]:
    """Return the number of each class, by its name."""
    return {name: number for number, name in enumerate(settings.classes.names)}
