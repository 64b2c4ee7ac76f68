"""Choice among a set of models, as ``auto``: puts what the gateway knows of request and models before the router."""

import logging
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from sloserve.core.errors import ConfigError, InvalidRequest
from sloserve.fleet.client_routes import GENERATING
from sloserve.fleet.fleet import Fleet, FleetModel
from sloserve.fleet.gateway.calibration import Calibration
from sloserve.fleet.gateway.choice_log import ChoiceLog
from sloserve.fleet.gateway.choosing import Chosen, PredictedTimes, ResponseTimes
from sloserve.fleet.gateway.gateway_request import GatewayRequest
from sloserve.fleet.gateway.instances import UNAVAILABLE, UNKNOWN
from sloserve.fleet.gateway.needs import needs_of
from sloserve.fleet.gateway.parts import GatewayState
from sloserve.fleet.gateway.prediction import NOTHING, Work, total
from sloserve.fleet.router.candidates import Barred, Candidate, RequestFacts
from sloserve.fleet.router.choice_records import VERSION, ChoiceLine, RunLine
from sloserve.fleet.router.choose import ModelChooser
from sloserve.fleet.router.decision import Decision
from sloserve.fleet.router.features import Schema
from sloserve.fleet.router_section import FleetRouter
from sloserve.scheduler.virtual_queues.contract import RunningSums

logger = logging.getLogger(__name__)


class ModelSets:
    """Chooses models by the router of a fleet.

    Args:
        fleet: The fleet.
        router: Router of the fleet.
        parts: State of the gateway.
        seed: Seed that says which requests explore, another one for each gateway.
        before: The same for the version of the fleet's file that was in force before; ``None`` at the start.

    Raises: ConfigError for a policy that cannot be used.
    """

    _chooser: ModelChooser
    _log: ChoiceLog | None
    _is_rolled_back: bool

    def __init__(
        self,
        fleet: Fleet,
        router: FleetRouter,
        parts: GatewayState,
        seed: bytes = b"",
        before: "ModelSets | None" = None,
    ) -> None:
        self._models, self._sets, self._parts = fleet.models, router.sets, parts
        self._wakes_s = min(fleet.switching.max_wait_s, parts.limits.hold_max_s)
        self._router = router, _versions(router)
        # How slow the models are was measured, whatever the router does.
        self._slower: defaultdict[str, Calibration] = defaultdict(Calibration) if before is None else before._slower
        self.goes_on = before is not None and before._router == self._router
        """Whether it is the router that was there before, with its conversations, its comparison and its log."""
        if before is not None and self.goes_on:
            self._chooser, self._log, self._is_rolled_back = before._chooser, before._log, before._is_rolled_back
            return
        try:
            self._chooser = ModelChooser.of(router.settings, router.folder, seed=seed)
        except ConfigError as error:
            raise ConfigError(f"{fleet.source}: router: {error}") from None
        self._log, self._is_rolled_back = _log_of(router), False

    def sets(self, models: Collection[str]) -> Mapping[str, Collection[str]]:
        """Return the models in ``models`` that are in each set, by its name; empty sets are left out."""
        among = {name: [model for model in of if model in models] for name, of in self._sets.items()}
        return {name: of for name, of in among.items() if of}

    def choose(self, request: GatewayRequest, among: Collection[str], *, again: bool = False) -> Chosen:
        """Choose a model of a set. Raises: InvalidRequest if no model can serve the request, with what each lacks."""
        if request.route not in GENERATING:
            raise InvalidRequest("model", request.model, f"one model; {request.route} needs its name")
        now_s = self._parts.clock.monotonic_s()
        facts = self._facts(request, among, now_s - request.arrival_s)
        held = defaultdict(list)
        for one in self._parts.hold.held:
            held[one.model].append(one.work)
        candidates = [self._candidate(self._models[m], total(held[m]), request, facts, now_s) for m in among]
        if not any(math.isfinite(one.ready_in_s) for one in candidates):
            states = {one.model: self._parts.instances.state_of(one.model, now_s) for one in candidates}
            somewhere = {model for model, state in states.items() if state != UNAVAILABLE} or states.keys()
            candidates = [
                replace(one, ready_in_s=self._wakes_s) if one.model in somewhere else one for one in candidates
            ]
        choice = self._chooser.choose(facts, candidates, now_s, tuple(among), again=again)
        if choice.model is None:
            raise InvalidRequest(
                "model", request.model, f"able to serve this request: {self._why_not(facts, choice.barred)}"
            )
        return Chosen(
            choice.model,
            choice.why.value,
            choice.shadow,
            self._foreseen(choice.model, candidates, facts, now_s),
            choice.decision,
        )

    def ended(self, model: str, foreseen: PredictedTimes, ratio: float) -> None:
        self._slower[model].ended(ratio * foreseen.slower, self._parts.clock.monotonic_s())

    def settled(self, chosen: Chosen, times: ResponseTimes | None, took_s: float, *, has_left: bool) -> None:
        decision = chosen.decision
        if decision is None:
            return
        in_time = _in_time(decision, times, took_s, has_left=has_left)
        if in_time is not None:
            quality = decision.quality if in_time else 0.0
            self._parts.metrics.settled(decision.arm.value, quality)
            self._compare(decision, quality)
        if self._log is not None and decision.features is not None:
            line = _line(decision, chosen.why, in_time, took_s, 0 if times is None else times.tokens)
            self._parts.metrics.logged(is_written=self._log.add(line))

    def close(self) -> None:
        """Write what the log of choices still has to write."""
        if self._log is not None:
            self._log.close()

    def _compare(self, decision: Decision, quality: float) -> None:
        guard = self._chooser.guard
        if guard is None or decision.trial is None:
            return
        guard.ended(decision.trial, quality)
        if guard.has_lost and not self._is_rolled_back:
            self._is_rolled_back = True
            self._parts.metrics.rolled_back()
            logger.warning(
                "the router's policy earned %.3f less quality in time than greedy (interval +- %.3f, %d comparisons): "
                "greedy chooses models until the gateway is started again",
                -guard.mean,
                guard.half,
                guard.cycles,
            )

    def _facts(self, request: GatewayRequest, among: Collection[str], elapsed_s: float) -> RequestFacts:
        needs = needs_of(request)
        output_tokens, slo_class = self._parts.demand.output_tokens, request.slo_class
        expected = [output_tokens(model, slo_class, request.most_output) for model in among]
        return RequestFacts(
            slo_class=slo_class,
            targets=request.slo.targets,
            prompt_tokens=needs.prompt_tokens,
            output_tokens=sum(expected) / len(expected),
            task=request.task,
            needs=needs.features,
            conversation=None if needs.conversation is None else f"{request.tenant.name}\n{needs.conversation}",
            begins=needs.begins,
            context_tokens=needs.longest_tokens + (request.max_tokens or 1),
            elapsed_s=elapsed_s,
            network_s=request.network_s,
        )

    def _candidate(
        self, model: FleetModel, waiting: Work, request: GatewayRequest, facts: RequestFacts, now_s: float
    ) -> Candidate:
        """Return a model of the set as a candidate for the router.

        Args:
            model: Model of the fleet.
            waiting: Work that waits in the gateway for this model.
            request: Request to serve.
            facts: Facts about the request.
            now_s: Monotonic time in seconds.
        """
        instances = self._parts.instances
        serving = instances.serving(model.name, now_s)
        ready_in_s = 0.0 if serving else instances.ready_in_s(model.name, now_s)
        most_s = self._parts.limits.hold_max_s if request.ttl_s is None else request.ttl_s - facts.elapsed_s
        if ready_in_s is None or ready_in_s > most_s:
            ready_in_s = math.inf
        knows = instances.affinity and serving
        prompt = request.beginnings(model.name) if knows else ()
        share = 1.0 / max(len(serving), 1)
        held = Work(math.ceil(waiting.requests * share), waiting.prompt_tokens * share, waiting.output_tokens * share)
        new = Work(1, facts.prompt_tokens, facts.output_tokens)
        times = []
        for one in serving:
            pace = instances.paces.get((model.name, one.report.device), UNKNOWN)
            times.append(one.times_s(pace, new, prompt, held))
        if not serving:
            paces = [pace for (name, _), pace in instances.paces.items() if name == model.name] or [UNKNOWN]
            times = [pace.times_s(RunningSums(), held, new, 0.0, NOTHING) for pace in paces]
        slower = self._slower[model.name].factor(now_s)
        chosen = min(times, key=lambda forecast: forecast.cost_s)  # as a gateway sends the request
        first_s, completion_s = slower * chosen.first_s, slower * chosen.completion_s
        return Candidate(
            model=model.name,
            max_model_len=model.max_model_len,
            completion_s=completion_s,
            first_s=first_s,
            batches=[one.requests for one in serving],
            ready_in_s=ready_in_s,
            supports=model.supports,
            full=self._parts.admission(model.name).is_full(facts.slo_class, now_s, request.tenant.name),
        )

    def _foreseen(
        self, model: str, candidates: Iterable[Candidate], facts: RequestFacts, now_s: float
    ) -> PredictedTimes:
        one = next(candidate for candidate in candidates if candidate.model == model)
        token_s = (one.completion_s - one.first_s) / max(facts.output_tokens - 1.0, 1.0)
        first_s = facts.elapsed_s + one.ready_in_s + one.first_s
        return PredictedTimes(first_s, token_s, self._slower[model].factor(now_s))

    def _why_not(self, facts: RequestFacts, barred: Mapping[str, Barred]) -> str:
        reasons = []
        for name, reason in barred.items():
            model = self._models[name]
            if reason is Barred.TOO_LONG:
                reasons.append(
                    f"{name} has a context of {model.max_model_len} tokens, and about {facts.context_tokens} of prompt "
                    "and output are asked for"
                )
            elif reason is Barred.UNSUPPORTED:
                reasons.append(f"{name} has no {', '.join(sorted(facts.needs - model.supports))}")
            else:
                reasons.append(f"{name} is not awake in time")
        return "; ".join(reasons) or "the set has no model"


def _versions(router: FleetRouter) -> list[tuple[int, int] | None]:
    """Return what changes with the contents of the files of a router's policies: time of change and size."""
    found: list[tuple[int, int] | None] = []
    for name in (router.settings.policy, router.settings.shadow):
        try:
            status = None if name is None else (router.folder / name).stat()
        except OSError:  # a policy that comes with the package
            status = None
        found.append(None if status is None else (status.st_mtime_ns, status.st_size))
    return found


def _log_of(router: FleetRouter) -> ChoiceLog | None:
    settings = router.settings
    if settings.log is None:
        return None
    models = list(settings.models)
    about = RunLine(VERSION, "", Schema(len(models)).as_text(), models, settings.policy, settings.explore)
    return ChoiceLog(router.folder / settings.log, settings.log_mib << 20, about)


def _in_time(decision: Decision, times: ResponseTimes | None, took_s: float, *, has_left: bool) -> bool | None:
    """Return whether a request was served in time; ``None`` if its client left before its time was over."""
    if times is not None:
        return decision.in_time(times.e2e_s, times.tokens, times.first_s)
    return None if has_left and took_s + decision.facts.network_s <= decision.limit_s() else False


def _line(decision: Decision, why: str, in_time: bool | None, took_s: float, tokens: int) -> ChoiceLine:
    assert decision.features is not None
    return ChoiceLine(
        n=decision.number,
        at_s=round(decision.at_s, 4),
        task=decision.task,
        weight=decision.weight,
        x=[round(value, 5) for value in decision.features.tolist()],
        allowed=[i for i, is_allowed in enumerate(decision.allowed.tolist()) if is_allowed],
        best=decision.best,
        chosen=decision.chosen,
        why=why,
        p=decision.propensity,
        quality=decision.quality,
        limit_s=round(max(decision.limit_s(tokens or None), 1e-3), 4),
        took_s=round(took_s, 4),
        in_time=in_time,
        tokens=tokens,
    )
