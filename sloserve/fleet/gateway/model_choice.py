"""The model of one request: the model that it names, or one of the set that it names."""

from functools import partial
from typing import Final
from urllib.parse import quote

from sloserve.core.errors import InvalidRequest, UnknownModel
from sloserve.fleet.gateway.choosing import Chosen, ResponseTimes
from sloserve.fleet.gateway.gateway_request import GatewayRequest
from sloserve.fleet.gateway.parts import GatewayState

CHOSEN_MODEL: Final = "x-sloserve-model"
"""Response header for a request that named a set of models: the model that serves it, and why."""
_IN_HEADER: Final = "/:@+,"
"""Characters that stand in a header unquoted, beside letters, digits, and ``_.-~``."""


class ModelChoice:
    """Chooses the model of a request, which asks for it from then on; ``headers`` are for its response.

    Raises: UnknownModel; InvalidRequest if no model of a set can serve it.
    """

    def __init__(self, parts: GatewayState, request: GatewayRequest) -> None:
        self._parts, self._request = parts, request
        self._choose: partial[Chosen] | None = None
        self._chosen: Chosen | None = None
        self._times: ResponseTimes | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        models, sets = parts.models_of(request.tenant)
        if parts.chooser is not None and isinstance(request.model, str) and request.model in sets:
            self._choose = partial(parts.chooser.choose, request, sets[request.model])
            self.take(self._choose())
        if request.model not in models:
            raise UnknownModel(request.model, (*sets, *models))

    def another(self) -> Chosen | None:
        """Choose another model for the request after its engine was lost; ``None`` if it stays with its own."""
        try:
            chosen = None if self._choose is None else self._choose(again=True)
        except InvalidRequest:
            return None
        return None if chosen is None or chosen.model == self._request.model else chosen

    def take(self, chosen: Chosen) -> None:
        """Let this model serve the request."""
        self._request.to_model(chosen.model)
        value = f"{quote(chosen.model, safe=_IN_HEADER)};why={chosen.why}"
        self.headers = [(CHOSEN_MODEL.encode(), value.encode())]
        self._chosen = chosen
        self._parts.metrics.chose(chosen.model, chosen.why, chosen.shadow)

    def completed(self, times: ResponseTimes) -> None:
        """Record that the output came to its end."""
        self._times = times
        foreseen = None if self._chosen is None else self._chosen.foreseen
        if foreseen is not None and self._parts.chooser is not None:
            ratio = times.e2e_s / foreseen.completion_s(times.tokens)
            self._parts.chooser.ended(self._request.model, foreseen, ratio)
            self._parts.metrics.completed(self._request.model, ratio)

    def ended(self, *, has_left: bool) -> None:
        """Record that the request has ended, in whatever way; ``has_left`` says that its client left before the end."""
        if self._chosen is not None and self._parts.chooser is not None:
            took_s = self._parts.clock.monotonic_s() - self._request.arrival_s
            self._parts.chooser.settled(self._chosen, self._times, took_s, has_left=has_left)
