"""Wrap ``AsyncLLM`` in the API process: read SLOs, predict, refuse, and report how each request fared.

All of it happens around ``AsyncLLM.generate``, which every route that generates comes through (chat, completions,
responses, Anthropic's messages), and when it is called rather than when the stream is first read, so that a refusal can
still be an HTTP status. Routes that pool come through ``AsyncLLM.encode``, and keep no SLO: a stated SLO is refused
there. :func:`install` is registered as a ``vllm.general_plugins`` entry point; it therefore works under plain ``vllm
serve`` and in each of several API processes, and leaves engines alone that do not run our scheduler. Headers, nested
bodies and reports need ``sloserve.api.middleware`` besides, which ``sloserve serve`` adds.
"""

import functools
from typing import Any

from sloserve.core import process_death
from sloserve.core.clock import SystemClock
from sloserve.core.errors import ConfigError
from sloserve.engine.metrics.engine_page import sweep_pages
from sloserve.engine.recording.run import begin_run
from sloserve.scheduler.settings import KEY, check_engine_flags, check_settings, plugin_settings
from sloserve.vllm_plugin import seeded_prompts
from sloserve.vllm_plugin.server import (
    ending,
    engine_control,
    live_settings,
    parking,
    reloading,
    rust_front_end,
    tenant_models,
)
from sloserve.vllm_plugin.server.core_check import CONTROL
from sloserve.vllm_plugin.server.front_end import FrontEnd
from sloserve.vllm_plugin.server.front_end_of import ATTRIBUTE, controlling, core_hangs, front_end_of, has_failed
from sloserve.vllm_plugin.server.observe import entering


def install() -> None:
    """Wrap ``AsyncLLM`` once; a second call changes nothing. Where an agent started the engine, it dies with it."""
    process_death.die_with_named_parent()
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    if hasattr(AsyncLLM.generate, "__wrapped__"):
        return
    engine_control.install()
    parking.install()
    reloading.install()
    seeded_prompts.install(runs_our_scheduler)
    ending.install(runs_our_scheduler)
    stock_init, stock_generate, stock_add = AsyncLLM.__init__, AsyncLLM.generate, AsyncLLM.add_request
    stock_encode, stock_shutdown, stock_check_health = AsyncLLM.encode, AsyncLLM.shutdown, AsyncLLM.check_health

    @functools.wraps(stock_init)
    def init(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        if not runs_our_scheduler(vllm_config):
            stock_init(self, vllm_config, *args, **kwargs)
            return
        check_start(vllm_config)
        ending.end_with_starter()
        ending.fail_with_engine(has_failed)
        with ending.stoppable_start():
            stock_init(self, vllm_config, *args, **kwargs)
        rank, processes = kwargs.get("client_index", 0), kwargs.get("client_count", 1)
        live_settings.outlast_hangups()  # they come once the front end has published its page
        front_end = FrontEnd(self, SystemClock(), rank, processes)
        setattr(self, ATTRIBUTE, front_end)
        front_end.live.listen(self, rank)
        if plugin_settings(vllm_config.additional_config).keys is not None:
            tenant_models.install()

    @functools.wraps(stock_generate)
    def generate(self: Any, prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> Any:
        front_end = front_end_of(self)
        if front_end is None or not hasattr(sampling_params, "output_kind"):
            return stock_generate(self, prompt, sampling_params, *args, **kwargs)
        request_id = args[0] if args else kwargs.get("request_id")
        call = front_end.accept(
            prompt, sampling_params, kwargs.get("priority", 0), kwargs.get("session_id"), request_id
        )
        outputs = stock_generate(self, prompt, sampling_params, *args, **kwargs)
        return front_end.watch(call, outputs, sampling_params.output_kind)

    @functools.wraps(stock_encode)
    def encode(self: Any, prompt: Any, *args: Any, **kwargs: Any) -> Any:
        front_end = front_end_of(self)
        if front_end is not None:
            front_end.accept_pooling(prompt)
        return stock_encode(self, prompt, *args, **kwargs)

    @functools.wraps(stock_add)
    async def add_request(self: Any, request_id: str, prompt: Any, *args: Any, **kwargs: Any) -> Any:
        front_end, call = front_end_of(self), entering.get()
        if front_end is not None:
            front_end.check_open(call)
        if front_end is None or call is None:
            return await stock_add(self, request_id, prompt, *args, **kwargs)
        # The engine's deadlines count from our front end.
        kwargs.setdefault("arrival_time", front_end.arrival_time(call, prompt))
        try:
            collector = await stock_add(self, request_id, prompt, *args, **kwargs)
        finally:
            entering.set(None)
        call.engine_request_id = collector.request_id
        return collector

    @functools.wraps(stock_check_health)
    async def check_health(self: Any) -> None:
        await stock_check_health(self)
        if await core_hangs(self):
            raise self.dead_error

    @functools.wraps(stock_shutdown)
    def shutdown(self: Any, timeout: float | None = None) -> None:
        front_end = front_end_of(self)
        stock_shutdown(self, timeout if front_end is None else front_end.drain.run(self, timeout))
        if front_end is not None:
            front_end.close()
            sweep_pages()  # an engine that took too long to stop was killed

    stock_config = EngineArgs.create_engine_config

    @functools.wraps(stock_config)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = stock_config(self, *args, **kwargs)
        # Settings that are left over where another scheduler runs must not stop it.
        if made.scheduler_config.scheduler_cls is not None and runs_our_scheduler(made):
            check_start(made)  # an engine with several API servers, or with vLLM's Rust one, starts before any AsyncLLM
            if plugin_settings(made.additional_config).record_mib:
                begin_run(SystemClock().now_s())  # its processes inherit it
            rust_front_end.serve_metrics()
        return made

    EngineArgs.create_engine_config = create_engine_config
    AsyncLLM.__init__, AsyncLLM.generate, AsyncLLM.add_request = init, generate, add_request
    AsyncLLM.encode, AsyncLLM.shutdown, AsyncLLM.check_health = encode, shutdown, check_health
    for name in CONTROL:
        setattr(AsyncLLM, name, _controlling(getattr(AsyncLLM, name)))


def check_start(vllm_config: Any) -> None:
    """Raise ConfigError for what the engine's processes refuse, before they start and load the model.

    They still refuse what depends on the KV cache: its layout, and a swap space that holds no block of it.
    """
    from sloserve.vllm_plugin.engine import compat, private_names
    from sloserve.vllm_plugin.swap.refusals import check_configured

    private_names.check_version()
    private_names.check_types()
    compat.check_model(vllm_config)
    settings, config = check_settings(vllm_config.additional_config), vllm_config.scheduler_config
    if settings.keys is not None and rust_front_end.is_used():
        raise ConfigError(
            f"keys {settings.keys}: vLLM's Rust front end ({rust_front_end.RUST_FRONT_END}) checks no keys; unset it, "
            "or leave keys out"
        )
    check_engine_flags(settings, chunked_prefill=config.enable_chunked_prefill, scheduling_policy=config.policy)
    check_configured(vllm_config)


def _controlling(stock: Any) -> Any:
    @functools.wraps(stock)
    async def controlled(self: Any, *args: Any, **kwargs: Any) -> Any:
        with controlling(self):
            return await stock(self, *args, **kwargs)

    return controlled


def runs_our_scheduler(vllm_config: Any) -> bool:
    """Return whether the engine was configured with our scheduler, as a path or as a class, or a subclass of it."""
    scheduler_cls = vllm_config.scheduler_config.scheduler_cls
    if isinstance(scheduler_cls, type):
        return any(base.__module__.startswith("sloserve.") for base in scheduler_cls.__mro__)
    additional_config = vllm_config.additional_config
    return str(scheduler_cls).startswith("sloserve.") or (
        isinstance(additional_config, dict) and KEY in additional_config
    )
