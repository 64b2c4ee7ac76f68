"""The plugin's settings, as they travel in ``--additional-config '{"sloserve": {...}}'``."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from sloserve.core.errors import ConfigError
from sloserve.core.files.json_schema import Written, schema_of
from sloserve.core.files.kinds import reading
from sloserve.core.files.model import Allowed, Problem, check_model, dotted, unknown
from sloserve.core.slo import DEFAULT_CLASSES, ClassTable
from sloserve.core.tasks import MOST_TASKS
from sloserve.core.tenants import TenantTable
from sloserve.estimator.length.at_admission import LengthAtAdmission
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.admission.backlog import Elsewhere
from sloserve.scheduler.admission.waiting_queue import WaitingPlace
from sloserve.scheduler.class_settings import SECONDS, Classes, Seconds, class_table, no_class
from sloserve.scheduler.engine_flags import OWN_ORDER, check_chunks, check_order
from sloserve.scheduler.priority_settings import PriorityTables
from sloserve.scheduler.registry import make_policy, parse_policy, policy_class
from sloserve.scheduler.server_keys import read_server_keys
from sloserve.scheduler.share_settings import ShareSettings
from sloserve.scheduler.task_settings import MaxTasks, TaskAliases
from sloserve.scheduler.tenant_settings import Proxies, TenantHeaders
from sloserve.wire.headers import TENANTS, HeaderRules
from sloserve.wire.optional_http3 import Http3Settings
from sloserve.wire.peers import LOOPBACK
from sloserve.wire.priorities import PriorityHeaders
from sloserve.wire.resolve import Rules
from sloserve.wire.tasks import DEFAULT_ALIASES, header_names

KEY = "sloserve"
MAX_BODY_BYTES = 32 * 2**20
MAX_WAITING = 1024
MOST_RECORD_MIB = 1 << 20
RECORD_MIB = f"a whole number of MiB from 0 to {MOST_RECORD_MIB}"
ADMIN_KEY = "SLOSERVE_ADMIN_KEY"
"""Environment variable with the key of the admin routes: never a setting, so that no configuration shows it."""

Count = Annotated[int, Field(strict=True, ge=0), Allowed("a whole number >= 0")]
Cap = Annotated[int, Field(ge=1)]


def _default_tiers(classes: ClassTable) -> dict[str, str]:
    default = classes.default.name
    tiers = {"auto": default, "default": default, "flex": "background", "scale": "priority", "priority": "priority"}
    tiers["standard_only"] = default  # Anthropic's; it has auto besides
    return {tier: name for tier, name in tiers.items() if name in classes}


SERVICE_TIERS = tuple(_default_tiers(DEFAULT_CLASSES))
"""The values of ``service_tier`` that the APIs of OpenAI and Anthropic have."""


def _max_waiting(value: Any) -> int | dict[str, int]:
    caps = list(value.values()) if isinstance(value, Mapping) else [value]
    if any(isinstance(cap, bool) or not isinstance(cap, int) or cap < 1 for cap in caps):
        raise ValueError
    return dict(value) if isinstance(value, Mapping) else int(value)


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class AdmissionSettings(_Settings):
    """What the front end answers with 429.

    Args:
        mode: ``none`` refuses no request; ``cap`` refuses requests that would wait behind ``max_waiting`` requests of
            their class; ``predict`` refuses besides requests with targets that are predicted to be missed.
        max_waiting: One number for each class, or a number by class; 1024 for a class that is not named.
        min_chance: Least predicted chance to meet its TTFT and e2e targets with which ``predict`` admits a request.
        promises: Promises that may be given to requests that ask for one: ``any``, the promises of ``classes`` alone,
            or none (``off``). An engine behind a fleet's gateway besides takes over what the ``gateway`` has promised,
            as addresses in ``trusted_proxies`` state it.
    """

    mode: Annotated[Literal["none", "cap", "predict"], Allowed("one of none, cap, predict")] = "none"
    max_waiting: Annotated[
        int | Mapping[str, int],
        PlainValidator(_max_waiting),
        Written(Cap | dict[str, Cap]),
        Allowed("a whole number >= 1, or a mapping of class to one"),
    ] = MAX_WAITING
    min_chance: Annotated[float, Field(strict=True, gt=0.0, lt=1.0), Allowed("a number above 0 and below 1")] = 0.5
    promises: Annotated[Literal["any", "classes", "gateway", "off"], Allowed("one of any, classes, gateway, off")] = (
        "any"
    )

    def make(
        self,
        class_names: Sequence[str],
        still_waiting: Callable[[WaitingPlace], bool],
        elsewhere: Elsewhere | None = None,
        shares: ShareSettings | None = None,
        *,
        orders: bool = True,
    ) -> Admission:
        """Create an admission with these settings; under mode ``none`` it predicts and refuses none.

        Args:
            class_names: Names of the service classes.
            still_waiting: Function that returns whether a place's request has yet to emit its first token.
            elsewhere: Other processes that admit requests to this engine; ``None`` for none.
            shares: Shares of the tenants; ``None`` where they have none.
            orders: Whether the policy orders requests at all, and so can serve promised ones first.
        """
        tenants = None if shares is None else TenantTable(shares.weights)
        admission = Admission(class_names, still_waiting, elsewhere=elsewhere, tenants=tenants)
        self.set_rules(admission, class_names, shares, orders=orders)
        return admission

    def set_rules(
        self,
        admission: Admission,
        class_names: Sequence[str],
        shares: ShareSettings | None = None,
        *,
        orders: bool = True,
    ) -> None:
        """Set the rules of ``admission`` to the rules of these settings; parameters as for :meth:`make`."""
        caps = None if self.mode == "none" else {name: self.cap(name) for name in class_names}
        min_chance = self.min_chance if self.mode == "predict" else None
        promises = self.promises if orders else "policy"
        admission.set_rules(caps, min_chance, None if shares is None else shares.weights, promises)

    def cap(self, class_name: str) -> int:
        """Return how many requests of a class may wait."""
        return self.max_waiting if isinstance(self.max_waiting, int) else self.max_waiting.get(class_name, MAX_WAITING)


class PluginSettings(_Settings):
    """Settings of one engine and of the server before it; made by :func:`plugin_settings`.

    Args:
        policy: Name of the policy that plans, see :mod:`sloserve.scheduler.registry`.
        policy_options: Options of the policy.
        seed: Seed of the policy.
        shadow_policy: ``name:option=value`` of a policy that makes plans which are scored and never carried out.
        profile: Name or file of this engine's step times, which its own steps correct; ``None`` to learn them from its
            own steps alone.
        length_model: File that ``sloserve train-length`` wrote; the front end predicts each output's length with it,
            for all policies that predict lengths, unless their option ``length`` names another source. ``None``: they
            predict from the requests of the class that ended.
        plan_share: Most of the engine's stepping time that planning may cost, as a share; 1 plans at every step.
        aged_share: Most of the admissions, and of the KV in use unless it is one request's, that go to the oldest
            requests past their class's age, as a share; 0 turns ageing off.
        swapping: Fate of a preempted request's KV if there is swap space: ``cost`` copies it to the host where that
            takes less of the engine's time than computing it again does, ``always`` copies it while there is room.
        classes: The service classes; a file states changes of the built-in ones, see ``class_settings.py``.
        default_class: Name of the class of requests that name none.
        service_tiers: Class by ``service_tier``; entries replace the ones of the default table.
        unknown_class: Whether a request that names an unknown class is refused or gets the default class.
        objectives: Class by a gateway's inference objective; an objective that is not named has no effect.
        priority_headers: Class by value of each header with which another router states a priority; an objective comes
            before them. A value that is not listed has no effect; of numbers the largest that is not above it counts.
        unknown_headers: Whether an ``x-slo-*`` header that resembles none of ours is ignored or refused.
        task_aliases: Headers, and fields of the body, in which clients name their sessions; the first that a request
            has names its task, if it states no ``task_id``.
        task_idle_s: Seconds without a call after which a task has ended, unless its deadline is later.
        max_tasks: Most tasks that each API process knows at a time.
        tenants: The most urgent class that each tenant may use.
        tenant_default: The most urgent class of other tenants; ``None`` for no limit.
        tenant_headers: Names of the headers that state the tenant.
        keys: File of keys, each of which stands for a tenant; ``None``: requests need no key of ours.
        trusted_proxies: Networks from which a header may name a tenant, where there is no file of keys.
        tenant_shares: How tenants share the engine; ``None``: policies do not see tenants.
        max_body_bytes: Most bytes of a request body.
        max_tenant_labels: Most tenants with metrics of their own; the rest is ``other``.
        hung_after_s: Seconds without any response after which an engine core counts as hung; more than its longest step
            takes.
        waiting_comments_s: Seconds between comments in a stream while its request waits, for clients that ask for them;
            0 for no comments.
        record: Whether plans with their snapshots are recorded beside events.
        record_mib: Most MiB of the recording of each process: engine, API process, or a fleet's gateway; 0 for none.
        record_folder: Folder of recordings; ``None`` for ``sloserve/recordings`` in the user's folder of state.
        http3: Whether the server listens on UDP too, and how.
    """

    policy: Annotated[str, Allowed("the name of a policy")] = "fcfs"
    policy_options: Annotated[dict[str, Any], Allowed("a mapping of option to value")] = {}
    shadow_policy: Annotated[str | None, Allowed("the name of a policy")] = None
    seed: Count = 0
    profile: Annotated[str | None, Allowed("the name or file of a profile")] = None
    length_model: Annotated[str | None, Allowed("the file of a length model")] = None
    plan_share: Annotated[float, Field(strict=True, ge=1e-6, le=1.0), Allowed("a number within 1e-06..1")] = 0.05
    aged_share: Annotated[float, Field(strict=True, ge=0.0, le=1.0), Allowed("a number within 0..1")] = 0.05
    swapping: Annotated[Literal["cost", "always"], Allowed("one of cost, always")] = "cost"
    classes: Classes = DEFAULT_CLASSES
    default_class: Annotated[str, Allowed("the name of a class")] = DEFAULT_CLASSES.default.name
    service_tiers: Annotated[dict[str, str], Allowed("a mapping of service tier to class")] = _default_tiers(
        DEFAULT_CLASSES
    )
    unknown_class: Annotated[Literal["reject", "default"], Allowed("one of reject, default")] = "reject"
    objectives: Annotated[dict[str, str], Allowed("a mapping of objective to class")] = {}
    priority_headers: PriorityTables = {}
    unknown_headers: Annotated[Literal["ignore", "reject"], Allowed("one of ignore, reject")] = "ignore"
    task_aliases: TaskAliases = DEFAULT_ALIASES
    task_idle_s: Annotated[Seconds, SECONDS] = 600.0
    max_tasks: MaxTasks = MOST_TASKS
    tenants: Annotated[dict[str, str], Allowed("a mapping of tenant to class")] = {}
    tenant_default: Annotated[str | None, Allowed("the name of a class")] = None
    tenant_headers: TenantHeaders = TENANTS
    keys: Annotated[str | None, Allowed("the path of a file of keys")] = None
    trusted_proxies: Proxies = LOOPBACK
    tenant_shares: Annotated[ShareSettings | None, Allowed("a mapping with half_life_s, weights")] = None
    admission: Annotated[AdmissionSettings, Allowed("a mapping with mode, max_waiting, min_chance, promises")] = (
        AdmissionSettings()
    )
    max_body_bytes: Annotated[int, Field(strict=True, ge=1), Allowed("a whole number of bytes >= 1")] = MAX_BODY_BYTES
    max_tenant_labels: Count = 50
    hung_after_s: Annotated[Seconds, SECONDS] = 300.0
    waiting_comments_s: Annotated[
        float, Field(strict=True, ge=0.0, le=3600.0), Allowed("a number of seconds from 0 to 3600")
    ] = 1.0
    record: Annotated[Literal["events", "plans"], Allowed("one of events, plans")] = "events"
    record_mib: Annotated[int, Field(strict=True, ge=0, le=MOST_RECORD_MIB), Allowed(RECORD_MIB)] = 0
    record_folder: Annotated[str | None, Allowed("the path of a folder")] = None
    http3: Annotated[Http3Settings, Allowed("a mapping with enabled, scheduler and limits")] = Http3Settings()

    @property
    def header_rules(self) -> HeaderRules:
        """Rules by which headers are read."""
        return HeaderRules(
            self.tenant_headers,
            self.unknown_headers == "reject",
            header_names(self.task_aliases),
            PriorityHeaders(self.priority_headers).names,
        )

    @property
    def rules(self) -> Rules:
        """Rules by which requests' SLOs are read."""
        return Rules(
            classes=self.classes,
            service_tiers=self.service_tiers,
            unknown_to_default=self.unknown_class == "default",
            tenants=self.tenants,
            tenant_default=self.tenant_default,
            objectives=self.objectives,
            task_aliases=self.task_aliases,
            priorities=PriorityHeaders(self.priority_headers),
        )

    @property
    def orders_requests(self) -> bool:
        """Whether requests are ordered by anything but their arrival."""
        return bool(policy_class(self.policy).needs) or self.tenant_shares is not None

    def make_lengths(self) -> LengthAtAdmission | None:
        """Return the predictor of ``length_model``.

        Raises: ConfigError when the file is no length model.
        """
        if self.length_model is None:
            return None
        return LengthAtAdmission(Path(self.length_model), self.classes.names)

    def as_config(self) -> dict[str, Any]:
        """Return plain values from which :func:`plugin_settings` makes equal settings; they travel as JSON."""
        plain = self.model_dump(exclude={"classes", "default_class"})
        plain["tenant_headers"] = list(self.tenant_headers)
        plain["task_aliases"] = list(self.task_aliases)
        plain["trusted_proxies"] = list(self.trusted_proxies)
        table = self.classes.as_config()
        return {key: table[key] if key in table else plain[key] for key in PluginSettings.model_fields}


def plugin_settings(additional_config: Mapping[str, Any] | None) -> PluginSettings:
    """Read the ``sloserve`` section of vLLM's additional config; without one the policy is fcfs.

    Raises: ConfigError that lists every unknown key, value out of range and name of an unknown class.
    """
    settings, problems = read_settings((additional_config or {}).get(KEY, {}))
    if settings is None:
        raise _wrong(problems)
    return settings


def check_settings(additional_config: Mapping[str, Any] | None) -> PluginSettings:
    """Return the settings that :func:`plugin_settings` reads, if their policies and files can be used.

    Raises: ConfigError that lists every mistake of one kind.
    """
    settings = plugin_settings(additional_config)
    for problems in (policy_problems((additional_config or {}).get(KEY, {})), file_problems(settings)):
        if problems:
            raise _wrong(problems)
    return settings


def check_engine_flags(settings: PluginSettings, *, chunked_prefill: bool, scheduling_policy: str = OWN_ORDER) -> None:
    """Raise ConfigError for a policy or a shadow policy that these flags of vLLM rule out.

    Args:
        settings: Settings with policies that can be made.
        chunked_prefill: Value of ``--enable-chunked-prefill``.
        scheduling_policy: Value of ``--scheduling-policy``.
    """
    policy = make_policy(settings.policy, settings.policy_options)
    check_order(policy, settings.policy, scheduling_policy, shares=settings.tenant_shares is not None)
    check_chunks(policy, settings.policy, chunked_prefill)
    if settings.shadow_policy is not None:
        name, options = parse_policy(settings.shadow_policy)
        check_chunks(make_policy(name, options), name, chunked_prefill)


def _wrong(problems: list[Problem]) -> ConfigError:
    return ConfigError("\n".join(f"{dotted((KEY, *path))}: {text}" for path, text in problems))


def read_settings(section: Any) -> tuple[PluginSettings | None, list[Problem]]:
    """Return the settings that ``section`` holds, or ``None`` and everything that is wrong with it.

    Whether its policies exist is checked by :func:`policy_problems`.
    """
    if not isinstance(section, Mapping):
        return None, [Problem((), f"{section!r} is not a mapping of settings")]
    table, problems = class_table(section)
    values = {**section, "classes": table, "default_class": table.default.name}
    for key in ("policy", "shadow_policy"):
        if isinstance(section.get(key), str):
            try:
                name, options = parse_policy(section[key])
            except ConfigError as error:
                problems.append(Problem((key,), str(error)))
                continue
            if key == "policy" and isinstance(section.get("policy_options", {}), Mapping):
                values |= {"policy": name, "policy_options": {**options, **section.get("policy_options", {})}}
    tiers = section.get("service_tiers", {})
    values["service_tiers"] = _default_tiers(table) | dict(tiers) if isinstance(tiers, Mapping) else tiers
    settings, more = check_model(PluginSettings, values)
    problems += more + _unknown_names(section, table)
    return (None if problems else settings), problems


def file_problems(settings: PluginSettings) -> list[Problem]:
    """Return why the files that the settings name cannot be used; report it before a model is loaded."""
    problems = []
    for key, load in (
        ("profile", lambda: None if settings.profile is None else load_profile(settings.profile)),
        ("length_model", settings.make_lengths),
        ("keys", lambda: _read_keys(settings)),
    ):
        try:
            load()
        except ConfigError as error:
            problems.append(Problem((key,), str(error)))
    return problems


def _read_keys(settings: PluginSettings) -> None:
    if settings.keys is not None:
        with reading("server_keys", Path(settings.keys)):
            read_server_keys(Path(settings.keys), settings.classes)


def policy_problems(section: Mapping[str, Any]) -> list[Problem]:
    """Return why the policies that ``section`` names cannot be made; what cannot be read is left out."""
    problems = []
    for key, options in (("policy", section.get("policy_options", {})), ("shadow_policy", {})):
        text = section.get(key, PluginSettings.model_fields[key].default)
        try:
            name, inline = parse_policy(text) if isinstance(text, str) else ("", {})
        except ConfigError:
            continue
        if name and isinstance(options, Mapping):
            try:
                make_policy(name, {**inline, **options})
            except ConfigError as error:
                problems.append(Problem((key if key in section else "policy_options",), str(error)))
    return problems


def _unknown_names(section: Mapping[str, Any], table: ClassTable) -> list[Problem]:
    """Return the names of unknown classes and service tiers; values that are no names are reported by their type."""
    named: list[tuple[tuple[str, ...], Any]] = [(("tenant_default",), section.get("tenant_default"))]
    for key in ("service_tiers", "tenants", "objectives"):
        entries = section.get(key)
        named += [((key, name), value) for name, value in entries.items()] if isinstance(entries, Mapping) else []
    tables = section.get("priority_headers")
    for header, entries in tables.items() if isinstance(tables, Mapping) else ():
        if isinstance(entries, Mapping):
            named += [(("priority_headers", str(header), str(of)), value) for of, value in entries.items()]
    problems = [no_class(path, x, table.names) for path, x in named if isinstance(x, str) and x not in table]
    tiers, admission = section.get("service_tiers"), section.get("admission")
    caps = admission.get("max_waiting") if isinstance(admission, Mapping) else None
    for path, names, known in (
        (("service_tiers",), tiers, SERVICE_TIERS),
        (("admission", "max_waiting"), caps, table.names),
    ):
        if isinstance(names, Mapping):
            problems += [Problem((*path, name), unknown(name, known)) for name in names if name not in known]
    return problems


def settings_schema() -> dict[str, Any]:
    """Return the JSON schema of PluginSettings, for ``sloserve schema settings``."""
    return schema_of(PluginSettings, "Settings of sloserve serve")
