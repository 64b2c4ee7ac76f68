"""SLOScheduler as it starts: on which of vLLM's schedulers it builds, and what it refuses."""

import copy
from typing import Any

import pytest

from sloserve.core.errors import ConfigError

pytestmark = pytest.mark.vllm


def scheduler_arguments(**scheduler_config: Any) -> dict[str, Any]:
    from sloserve.engine.virtual.engine_settings import EngineSettings
    from sloserve.vllm_plugin.virtual.vllm_config import scheduler_arguments

    arguments = scheduler_arguments(EngineSettings(kv_blocks=40, max_model_len=256), {"sloserve": {"policy": "edf"}})
    config = arguments["vllm_config"]
    for name, value in scheduler_config.items():
        setattr(config.scheduler_config, name, value)
    return arguments


def test_vllm_s_own_priority_scheduling_is_refused() -> None:
    from sloserve.vllm_plugin import SLOScheduler

    with pytest.raises(
        ConfigError,
        match=r"--scheduling-policy priority .*policy edf cannot; leave it at fcfs and choose --policy priority",
    ):
        SLOScheduler(**scheduler_arguments(policy="priority"))


@pytest.mark.parametrize("is_async", [False, True])
def test_the_class_is_the_one_that_vllm_would_choose_and_ours(is_async: bool) -> None:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    from sloserve.vllm_plugin import SLOScheduler

    class Mine(SLOScheduler):
        """A user's own."""

    arguments = scheduler_arguments(async_scheduling=is_async)
    chosen = arguments["vllm_config"].scheduler_config.get_scheduler_cls()
    for named in (SLOScheduler, Mine):
        positional = {**arguments}
        for scheduler in (named(**arguments), named(positional.pop("vllm_config"), **positional)):
            assert isinstance(scheduler, named) and isinstance(scheduler, chosen)
            assert isinstance(scheduler, AsyncScheduler) == is_async
            assert type(scheduler).__name__ == named.__name__
    assert type(SLOScheduler(**arguments)) is type(SLOScheduler(**arguments))


@pytest.mark.parametrize("is_async", [False, True])
def test_drafts_of_a_step_are_those_that_vllm_would_schedule(is_async: bool) -> None:
    """Workers without async scheduling take each token that they are given for one, placeholders (-1) included."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
    from vllm.v1.request import Request

    from sloserve.vllm_plugin import SLOScheduler

    def decoded(scheduler: Any) -> list[dict[str, list[int]]]:
        """The drafts of four steps: the third's come from the worker, the fourth's do not."""
        scheduler.num_spec_tokens = 2
        scheduler.add_request(Request("r", [2] * 8, SamplingParams(max_tokens=40), None, arrival_time=0.0))
        found = []
        for step in range(4):
            if step == 2 and not is_async:
                scheduler.update_draft_token_ids(DraftTokenIds(["r"], [[5, 6]]))
            output = scheduler.schedule()
            found.append(dict(output.scheduled_spec_decode_tokens))
            scheduler.update_from_output(
                output, ModelRunnerOutput(req_ids=["r"], req_id_to_index={"r": 0}, sampled_token_ids=[[3]])
            )
        return found

    arguments = scheduler_arguments(async_scheduling=is_async)
    stock = arguments["vllm_config"].scheduler_config.get_scheduler_cls()
    drafts = decoded(SLOScheduler(**arguments))
    assert drafts == decoded(stock(**arguments))
    assert is_async or drafts == [{}, {}, {"r": [5, 6]}, {}]


def test_a_diffusion_model_is_refused_by_name() -> None:
    from vllm.config.diffusion import DiffusionConfig
    from vllm.v1.engine.async_llm import AsyncLLM

    from sloserve.vllm_plugin import SLOScheduler
    from sloserve.vllm_plugin.server import install

    arguments = scheduler_arguments()
    arguments["vllm_config"].diffusion_config = DiffusionConfig(canvas_length=4)
    arguments["vllm_config"].scheduler_config.scheduler_cls = "sloserve.vllm_plugin.SLOScheduler"
    arguments["vllm_config"].model_config = copy.copy(arguments["vllm_config"].model_config)
    arguments["vllm_config"].model_config.model = "org/dream"
    with pytest.raises(ConfigError, match=r"org/dream is a diffusion model.*serve it with `vllm serve`, without --sch"):
        SLOScheduler(**arguments)
    install.install()
    with pytest.raises(ConfigError, match="org/dream is a diffusion model"):  # before anything is loaded
        AsyncLLM(arguments["vllm_config"], None, log_stats=False)


SWAP = {
    "kv_connector": "SwapConnector",
    "kv_connector_module_path": "sloserve.vllm_plugin.swap.connector",
    "kv_role": "kv_both",
}
OURS_SECOND = {"connectors": [{"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}, SWAP]}
WHOLE: dict[str, Any] = {"enable_chunked_prefill": False}


@pytest.mark.parametrize(
    ("section", "flags", "connector", "refused"),
    [
        ({"policy": "edf:late_last=perhaps"}, {}, None, r"sloserve\.policy: .*late_last.*perhaps"),
        ({"profile": "no.json"}, {}, None, r"sloserve\.profile: .*no\.json"),
        ({"length_model": "no.json"}, {}, None, r"sloserve\.length_model: .*no\.json"),
        ({"policy": "sarathi"}, WHOLE, None, "policy sarathi .*remove --no-enable-chunked-prefill"),
        ({"shadow_policy": "sarathi"}, WHOLE, None, "policy sarathi limits the tokens"),
        ({}, {"scheduling_policy": "priority"}, None, "policy edf cannot; leave it at fcfs and choose --policy"),
        ({}, {}, SWAP, "swap_space_gib of SwapConnector: None is not a number"),
        ({}, {}, SWAP | {"kv_role": "kv_producer"}, "kv_role kv_producer makes this engine one half"),
        (
            {},
            {},
            {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": OURS_SECOND},
            "name SwapConnector once, and first",
        ),
    ],
)
def test_what_the_engine_would_refuse_is_refused_before_any_process_of_it_starts(
    section: dict[str, Any], flags: dict[str, Any], connector: dict[str, Any] | None, refused: str
) -> None:
    """Whatever the front end is: vLLM's Rust front end makes no ``AsyncLLM``, nor does one of several API servers."""
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    from sloserve.vllm_plugin.server import install, tiny_model

    install.install()
    arguments = EngineArgs(
        model=tiny_model.resolve_model(tiny_model.NAME),
        scheduler_cls="sloserve.vllm_plugin.SLOScheduler",
        additional_config={"sloserve": {"policy": "edf", **section}},
        kv_transfer_config=None if connector is None else KVTransferConfig(**connector),
        **flags,
    )
    with pytest.raises(ConfigError, match=refused):
        arguments.create_engine_config()


def test_what_the_engine_takes_is_not_refused() -> None:
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    from sloserve.vllm_plugin.server import install, tiny_model

    install.install()
    arguments = EngineArgs(
        model=tiny_model.resolve_model(tiny_model.NAME),
        scheduler_cls="sloserve.vllm_plugin.SLOScheduler",
        additional_config={"sloserve": {"policy": "edf"}},
        max_num_batched_tokens=8192,
        kv_transfer_config=KVTransferConfig(**SWAP, kv_connector_extra_config={"swap_space_gib": 1}),
        **WHOLE,
    )
    assert arguments.create_engine_config().scheduler_config.scheduler_cls == "sloserve.vllm_plugin.SLOScheduler"


def test_an_untested_vllm_is_refused_and_the_override_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    from sloserve.vllm_plugin import SLOScheduler

    monkeypatch.setattr(vllm, "__version__", "0.99.1+cpu")
    with pytest.raises(ConfigError, match=r"vLLM 0\.99\.1 is not tested.*0\.32\.0.*SLOSERVE_ALLOW_UNTESTED_VLLM=1"):
        SLOScheduler(**scheduler_arguments())
    monkeypatch.setenv("SLOSERVE_ALLOW_UNTESTED_VLLM", "1")
    SLOScheduler(**scheduler_arguments())


def test_a_patch_release_of_a_tested_minor_version_starts_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import vllm

    from sloserve.vllm_plugin import SLOScheduler
    from sloserve.vllm_plugin.engine import private_names

    monkeypatch.setattr(vllm, "__version__", "0.32.7+cpu")
    with caplog.at_level("WARNING", logger=private_names.__name__):
        SLOScheduler(**scheduler_arguments())
    assert "vLLM 0.32.7 was not tested with sloserve, only other patch releases" in caplog.text


def test_a_local_build_of_a_tested_version_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    from sloserve.vllm_plugin.engine import private_names

    monkeypatch.setattr(vllm, "__version__", "0.32.0+cpu")
    private_names.check_version()


def test_a_scheduler_that_lost_an_attribute_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from sloserve.vllm_plugin import SLOScheduler
    from sloserve.vllm_plugin.engine import private_names

    monkeypatch.setattr(private_names, "SCHEDULER_ATTRIBUTES", (*private_names.SCHEDULER_ATTRIBUTES, "was_renamed"))
    monkeypatch.setattr(private_names, "REQUEST_ATTRIBUTES", (*private_names.REQUEST_ATTRIBUTES, "went_away"))
    with pytest.raises(ConfigError, match=r"lacks Request\.went_away, Scheduler\.was_renamed, which sloserve needs"):
        SLOScheduler(**scheduler_arguments())


def test_a_type_that_lost_a_field_is_refused_by_name_before_the_engine_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheSpec

    from sloserve.vllm_plugin import SLOScheduler
    from sloserve.vllm_plugin.engine import private_names
    from sloserve.vllm_plugin.server import install

    monkeypatch.setitem(private_names.FIELDS, SchedulerOutput, ("num_scheduled_tokens", "was_renamed"))
    monkeypatch.delattr(KVCacheSpec, "prefix_cacheable")
    said = r"lacks KVCacheSpec\.prefix_cacheable, SchedulerOutput\.was_renamed, which sloserve needs; use one of"
    arguments = scheduler_arguments()
    for start in (lambda: install.check_start(arguments["vllm_config"]), lambda: SLOScheduler(**arguments)):
        with pytest.raises(ConfigError, match=said):
            start()
