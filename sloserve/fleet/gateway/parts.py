"""State that all requests of a gateway share."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sloserve.core.clock import Clock
from sloserve.fleet.gateway.agent_connections import AgentConnections
from sloserve.fleet.gateway.attained import Attained
from sloserve.fleet.gateway.choosing import Chooser
from sloserve.fleet.gateway.demand import DemandMeter
from sloserve.fleet.gateway.gateway_request import GatewayRequestReader, Salt, own_salts
from sloserve.fleet.gateway.gateway_tasks import GatewayTasks
from sloserve.fleet.gateway.held import Hold
from sloserve.fleet.gateway.instances import Instances
from sloserve.fleet.gateway.keys import Tenant
from sloserve.fleet.gateway.limits import RequestPlaces
from sloserve.fleet.gateway.metrics import GatewayMetrics
from sloserve.fleet.gateway.passing import PassedResponse
from sloserve.fleet.gateway.salts import FleetSecret
from sloserve.fleet.gateway.sessions import Sessions
from sloserve.fleet.gateway.stored_responses import StoredResponses
from sloserve.fleet.gateway.traffic_log import TrafficLog
from sloserve.fleet.gateway_settings import GatewaySettings
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.settings import PluginSettings
from sloserve.wire.rate_limits import TenantRates


@dataclass
class GatewayState:
    """State shared by all requests of one gateway.

    Args:
        models: Models of the fleet.
        settings: Settings of its engines and classes.
        limits: Limits of the gateway.
        clock: Clock of this process.
        instances: Instances of the fleet.
        agents: Connections to the endpoints of agents.
        hold: Requests that wait for an instance.
        demand: Meter of demand by model and class.
        metrics: Counters of the gateway.
        traffic: Recent requests, for the planner to replay; ``None`` for a fleet that does not.
        chooser: Chooser for requests that name a set of models; ``None`` if there are no sets.
        secret: Secret of the fleet.
        storing: Models of which engines store responses.
        salt: Returns the salts of prompts in prefix caches.
    """

    models: Collection[str]
    settings: PluginSettings
    limits: GatewaySettings
    clock: Clock
    instances: Instances
    agents: AgentConnections
    hold: Hold
    demand: DemandMeter
    metrics: GatewayMetrics
    traffic: TrafficLog | None = None
    chooser: Chooser | None = None
    secret: FleetSecret = field(default_factory=lambda: FleetSecret(None))
    storing: Collection[str] = ()
    salt: Salt = own_salts
    stored: StoredResponses = field(init=False)
    reader: GatewayRequestReader = field(init=False)
    places: RequestPlaces = field(init=False)
    admissions: dict[str, Admission] = field(init=False, default_factory=dict)
    sessions: Sessions = field(init=False)
    attained: Attained = field(init=False)
    rates: TenantRates = field(init=False)
    tasks: GatewayTasks = field(init=False)
    passing_on: dict[PassedResponse, None] = field(init=False, default_factory=dict)
    """Responses that have begun."""

    def __post_init__(self) -> None:
        self.reader = GatewayRequestReader(self.settings, self.salt)
        self.stored = StoredResponses(self.secret, self.storing, self.instances, self.clock)
        self.sessions = Sessions(self.limits.max_sessions)
        self.attained = Attained(self.settings.classes.names)
        self.rates = TenantRates(self.clock)
        self.tasks = GatewayTasks(self.settings, self.clock)
        self.places = RequestPlaces(self.limits.max_requests, self.limits.max_body_mib << 20)

    def admission(self, model: str) -> Admission:
        """Return the admission of one model, over all its instances."""
        known = self.admissions.get(model)
        if known is None:
            known = self.admissions[model] = self.settings.admission.make(
                self.settings.classes.names,
                lambda place: not place.request.begun,
                shares=self.settings.tenant_shares,
            )
        return known

    def models_of(self, tenant: Tenant) -> tuple[list[str], Mapping[str, Collection[str]]]:
        """Return the models that a tenant may use, and the ones of them in each set, by its name."""
        models = [model for model in self.models if tenant.may_use(model)]
        return models, {} if self.chooser is None else self.chooser.sets(models)
