"""What all requests of a gateway share."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sloserve.core.clock import Clock
from sloserve.fleet.gateway.attained import Attained
from sloserve.fleet.gateway.choosing import Chooser
from sloserve.fleet.gateway.demand import DemandMeter
from sloserve.fleet.gateway.doors import Doors
from sloserve.fleet.gateway.gateway_request import GatewayRequestReader
from sloserve.fleet.gateway.hold import Hold
from sloserve.fleet.gateway.instances import Instances
from sloserve.fleet.gateway.keys import Tenant
from sloserve.fleet.gateway.limits import RequestPlaces
from sloserve.fleet.gateway.metrics import GatewayMetrics
from sloserve.fleet.gateway.passing import PassedAnswer
from sloserve.fleet.gateway_settings import GatewaySettings
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.settings import PluginSettings


@dataclass
class GatewayParts:
    """
    Args:
        models: of the fleet.
        settings: of its engines and classes. limits: of the gateway.
        chooser: for requests that name a set of models, where there is one.
    """

    models: Collection[str]
    settings: PluginSettings
    limits: GatewaySettings
    clock: Clock
    instances: Instances
    doors: Doors
    hold: Hold
    demand: DemandMeter
    metrics: GatewayMetrics
    chooser: Chooser | None = None
    reader: GatewayRequestReader = field(init=False)
    places: RequestPlaces = field(init=False)
    admissions: dict[str, Admission] = field(init=False, default_factory=dict)
    attained: Attained = field(init=False)
    passing_on: dict[PassedAnswer, None] = field(init=False, default_factory=dict)
    """Answers that have begun."""

    def __post_init__(self) -> None:
        self.reader = GatewayRequestReader(self.settings)
        self.attained = Attained(self.settings.classes.names)
        self.places = RequestPlaces(self.limits.max_requests, self.limits.max_body_mib << 20)

    def admission(self, model: str) -> Admission:
        """Returns the admission of one model, over all its instances."""
        known = self.admissions.get(model)
        if known is None:
            known = self.admissions[model] = self.settings.admission.make(
                self.settings.classes.names, lambda place: not place.request.begun
            )
        return known

    def models_of(self, tenant: Tenant) -> tuple[list[str], Mapping[str, Collection[str]]]:
        """Returns the models that a tenant may use, and those in each set of them, by its name."""
        models = [model for model in self.models if tenant.may_use(model)]
        return models, {} if self.chooser is None else self.chooser.sets(models)
