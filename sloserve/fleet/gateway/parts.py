"""State that all requests of a gateway share."""

from collections.abc import Collection, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Final

from sloserve.core.clock import Clock
from sloserve.engine.recording.folder import gateway_stem
from sloserve.engine.recording.front_end import RecordedFrontEnd
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
from sloserve.wire.in_flight import RequestsInFlight
from sloserve.wire.rate_limits import TenantRates
from sloserve.wire.tenant_places import TenantPlaces

MOST_CALLS: Final = 256
"""Most requests for files and batches at a time: they wait for the store and the disk."""


@dataclass
class GatewayState:
    """State shared by all requests of one gateway.

    A gateway for another version of the fleet's file has a state of its own, while requests that run keep theirs. What
    counts or has learned something is handed over: clients find their limits as they left them, counters only rise, and
    requests of both go to the same instances. What follows from the file alone is made again.

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
        before: State for the version of the file that was in force before, which shares instances, agents, hold, demand
            and metrics with this one; ``None`` at the start.
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
    before: InitVar["GatewayState | None"] = None
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
    in_flight: RequestsInFlight = field(init=False, default_factory=RequestsInFlight)
    """Requests that clients may ask about."""
    calls: TenantPlaces = field(init=False)
    """Places of requests for files and batches."""
    refusals: RecordedFrontEnd | None = field(init=False)
    """Recording of refused requests; ``None`` if the settings ask for none."""
    created_s: int = field(init=False)
    """Time at which the gateway started, in epoch seconds."""

    def __post_init__(self, before: "GatewayState | None") -> None:
        self.reader = GatewayRequestReader(self.settings, self.salt)
        self.stored = StoredResponses(self.secret, self.storing, self.instances, self.clock)
        if before is not None:
            self._take_over(before)
            return
        self.refusals = RecordedFrontEnd.begin(self.settings, gateway_stem, self.clock)
        self.sessions = Sessions(self.limits.max_sessions)
        self.attained = Attained(self.settings.classes.names)
        self.rates = TenantRates(self.clock)
        self.tasks = GatewayTasks(self.settings, self.secret.for_tasks, self.clock)
        self.places = RequestPlaces(self.limits.max_requests, self.limits.max_body_mib << 20)
        self.calls, self.created_s = TenantPlaces("requests for files and batches", MOST_CALLS), int(self.clock.now_s())

    def _take_over(self, before: "GatewayState") -> None:
        """Take what counts from the state before; this changes nothing there until :meth:`take_effect`."""
        self.sessions, self.rates, self.places = before.sessions, before.rates, before.places
        self.calls, self.created_s, self.passing_on = before.calls, before.created_s, before.passing_on
        self.in_flight, self.refusals = before.in_flight, before.refusals
        self.attained = before.attained.of_classes(self.settings.classes.names)
        self.tasks = before.tasks.of_settings(self.settings)
        # Predictions hold for one set of rules and classes; with others an admission begins empty, and does not count
        # the requests that the one before has let in and that wait.
        if _admits_as(self.settings) == _admits_as(before.settings):
            self.admissions = before.admissions

    def take_effect(self, an_event: Mapping[str, int]) -> None:
        """Set limits and classes of this state in what was handed over; requests that run keep their places.

        Args:
            an_event: Tokens per event of each model's streams, see :class:`DemandMeter`.
        """
        limits, classes = self.limits, self.settings.classes
        self.sessions.set_most(limits.max_sessions)
        self.places.set_limits(limits.max_requests, limits.max_body_mib << 20)
        self.hold.set_limits(limits.max_held, self.settings.tenant_shares)
        self.agents.set_silent_max_s(limits.silent_max_s)
        self.instances.affinity = limits.affinity
        self.demand.follow(classes, an_event)
        self.tasks.set_classes(classes.names)
        if self.refusals is not None:
            self.refusals.follow(self.settings)

    def admission(self, model: str) -> Admission:
        """Return the admission of one model, over all its instances."""
        known = self.admissions.get(model)
        if known is None:
            known = self.admissions[model] = self.settings.admission.make(
                self.settings.classes.names,
                lambda place: not place.request.begun,
                shares=self.settings.tenant_shares,
                orders=self.settings.orders_requests,
            )
        return known

    def models_of(self, tenant: Tenant) -> tuple[list[str], Mapping[str, Collection[str]]]:
        """Return the models that a tenant may use, and the ones of them in each set, by its name."""
        models = [model for model in self.models if tenant.may_use(model)]
        return models, {} if self.chooser is None else self.chooser.sets(models)


def _admits_as(settings: PluginSettings) -> tuple[object, ...]:
    return settings.admission, settings.classes.names, settings.tenant_shares, settings.orders_requests
