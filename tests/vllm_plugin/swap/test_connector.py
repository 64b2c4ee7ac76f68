"""Both halves of SwapConnector between vLLM's calls: what is ordered, what is copied once, what is refused."""

import inspect
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.core.errors import ConfigError

pytestmark = pytest.mark.vllm

TOKENS = 32
BLOCK_BYTES = 1024


def spec_of(layers: str) -> Any:
    """vLLM's description of layers: ``full``, ``window N``, ``chunk N``, ``sinks``, ``mamba MODE [SPARE BLOCKS]``."""
    import torch
    from vllm.v1 import kv_cache_interface as vllm

    kind, *numbers = layers.split()
    shape: dict[str, Any] = {"block_size": TOKENS, "num_kv_heads": 1, "head_size": 4, "dtype": torch.float32}
    if kind == "mamba":
        mode, spare = (*numbers, "0")[:2]
        return vllm.MambaSpec(
            block_size=TOKENS,
            shapes=((8,),),
            dtypes=(torch.float32,),
            mamba_cache_mode=mode,
            num_speculative_blocks=int(spare),
        )
    if kind == "window":
        return vllm.SlidingWindowSpec(**shape, sliding_window=int(numbers[0]))
    if kind == "chunk":
        return vllm.ChunkedLocalAttentionSpec(**shape, attention_chunk_size=int(numbers[0]))
    return vllm.SinkFullAttentionSpec(**shape, sink_len=TOKENS) if kind == "sinks" else vllm.FullAttentionSpec(**shape)


def configs(*layers: str, **changes: Any) -> tuple[Any, Any]:
    """What vLLM would give a connector: settings, and a KV cache of one group for each of ``layers``."""
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor

    groups = [KVCacheGroupSpec([f"l{i}"], spec_of(one)) for i, one in enumerate(layers or ("full",))]
    place = KVCacheTensor(size=9 * BLOCK_BYTES, layers=["l0"], layer_stride=9 * BLOCK_BYTES, block_stride=BLOCK_BYTES)
    cache = KVCacheConfig(num_blocks=9, kv_cache_tensors=[place], kv_cache_groups=groups)
    extra = {"swap_space_gib": changes.pop("space", 8 * BLOCK_BYTES / 2**30)}
    parallel = {"pipeline_parallel_size": 1, "world_size": 1, "nnodes_within_dp": 1} | changes.pop("parallel", {})
    settings: dict[str, Any] = {
        "kv_transfer_config": SimpleNamespace(
            kv_role=changes.pop("kv_role", "kv_both"), kv_connector_extra_config=extra, is_kv_producer=True
        ),
        "parallel_config": SimpleNamespace(**parallel),
        "model_config": SimpleNamespace(is_encoder_decoder=changes.pop("is_encoder_decoder", False)),
        "cache_config": SimpleNamespace(block_size=TOKENS),
        "scheduler_config": SimpleNamespace(scheduler_cls="sloserve.vllm_plugin.engine.scheduler.SLOScheduler"),
        "use_v2_model_runner": changes.pop("use_v2_model_runner", False),
    }
    return SimpleNamespace(**settings, **changes), cache


def connector(*layers: str, **changes: Any) -> Any:
    """The scheduler's half, with 8 host blocks."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    from sloserve.vllm_plugin.swap.connector import SwapConnector

    return SwapConnector(*configs(**changes)[:1], KVConnectorRole.SCHEDULER, configs(*layers)[1])


def request_of(num_tokens: int, request_id: str = "r") -> Any:
    return SimpleNamespace(request_id=request_id, num_tokens=num_tokens)


def blocks_of(*ids: int) -> Any:
    return tables_of(list(ids))


def tables_of(*tables: list[int]) -> Any:
    return SimpleNamespace(get_block_ids=lambda: tables)


class TestScheduler:
    def test_all_but_the_last_token_comes_back_the_partial_block_included(self) -> None:
        ours, request = connector(), request_of(70)
        assert ours.update_state_before_preempt(request, ([4, 2, 6, 8],), 70)
        (store,) = ours.build_connector_meta(None).stores
        assert store.device_ids == [4, 2, 6] and len(store.host_ids) == 3
        assert ours.get_num_new_matched_tokens(request, TOKENS) == (69 - TOKENS, True)
        ours.update_state_after_alloc(request, blocks_of(4, 1, 3), 69 - TOKENS)
        orders = ours.build_connector_meta(None)
        assert [(one.device_ids, one.host_ids) for one in orders.loads] == [([1, 3], store.host_ids[1:])]
        assert ours.store.free_blocks == 5  # until the load is over
        assert ours.load_ended("r", failed=False)
        assert ours.store.free_blocks == 8

    def test_state_that_lasts_is_kept_without_a_copy_where_nothing_is_new(self) -> None:
        ours, request = connector(), request_of(65)
        assert ours.update_state_before_preempt(request, ([4, 2, 6, 8],), 64) == 2
        ours.store.let_last("r", 1e-9)
        assert ours.update_state_before_preempt(request, ([4, 2, 6, 8],), 64) == 0
        assert ours.update_state_before_preempt(request_of(999), ([4, 2, 6, 8],), 998) is None
        assert len(ours.build_connector_meta(None).stores) == 1

    def test_rejected_drafts_do_not_come_back(self) -> None:
        ours = connector()
        ours.update_state_before_preempt(request_of(70), ([4, 2, 6],), 75)
        assert ours.get_num_new_matched_tokens(request_of(72), 0) == (71, True)

    @pytest.mark.parametrize("local", [64, 69])
    def test_what_the_prefix_cache_has_is_not_loaded(self, local: int) -> None:
        ours, request = connector(), request_of(65)
        ours.update_state_before_preempt(request, ([4, 2, 6],), 65)
        assert ours.get_num_new_matched_tokens(request, local) == (0, False)
        ours.update_state_after_alloc(request, blocks_of(4, 2, 6), 0)
        assert ours.store.free_blocks == 8

    def test_state_that_another_connector_serves_is_given_up(self) -> None:
        """MultiConnector tells all but the chosen child that nothing is to be loaded."""
        ours, request = connector(), request_of(65)
        ours.update_state_before_preempt(request, ([4, 2, 6],), 65)
        ours.update_state_after_alloc(request, blocks_of(4, 2, 6), 0)
        assert ours.store.counters["swap_dropped_found_elsewhere"] == 1
        assert not ours.build_connector_meta(None).loads

    def test_a_load_that_cannot_be_ordered_fails_and_raises_nothing(self) -> None:
        ours, request = connector(), request_of(65)
        ours.update_state_before_preempt(request, ([4, 2, 6],), 65)
        ours.update_state_after_alloc(request, blocks_of(4), 64)  # too few blocks
        (load,) = ours.build_connector_meta(None).loads
        assert not load.host_ids
        assert ours.load_ended("r", failed=True) is False
        assert ours.get_num_new_matched_tokens(request, 0) == (0, False)
        assert ours.store.free_blocks == 8

    @pytest.mark.parametrize("ended", ["request_finished", "new_epoch"])
    def test_what_is_given_up_while_it_loads_may_not_be_used(self, ended: str) -> None:
        ours, request = connector(), request_of(65)
        ours.update_state_before_preempt(request, ([4, 2, 6],), 65)
        ours.update_state_after_alloc(request, blocks_of(4, 2, 6), 64)
        ours.request_finished_all_groups(request, ([],)) if ended == "request_finished" else ours.store.new_epoch()
        assert ours.store.free_blocks == 5
        assert ours.load_ended("r", failed=False) is False
        assert ours.store.free_blocks == 8

    def test_a_load_of_another_connector_is_not_ours(self) -> None:
        assert connector().load_ended("r", failed=False) is None


class TestGroups:
    """Of each KV cache group only the blocks that will be read again, where vLLM's block tables say that they lie."""

    def test_a_window_keeps_its_last_blocks_and_no_null_block(self) -> None:
        ours, request = connector("full", "window 40"), request_of(105)
        assert ours.update_state_before_preempt(request, ([1, 2, 3, 4], [0, 5, 6, 7, 8]), 104) == 4 + 2
        (store,) = ours.build_connector_meta(None).stores
        assert store.device_ids == [1, 2, 3, 4, 6, 7]  # the token after 104 sees tokens 65 to 104
        assert ours.get_num_new_matched_tokens(request, 2 * TOKENS) == (104 - 2 * TOKENS, True)
        ours.update_state_after_alloc(request, tables_of([1, 2, 8, 9], [0, 6, 7, 10]), 104 - 2 * TOKENS)
        (load,) = ours.build_connector_meta(None).loads
        assert load.device_ids == [8, 9, 7, 10]  # what the prefix cache has is left as it is
        assert load.host_ids == [store.host_ids[i] for i in (2, 3, 4, 5)]

    def test_a_window_keeps_what_a_rejected_draft_would_need(self) -> None:
        ours, request = connector("window 40"), request_of(100)
        ours.update_state_before_preempt(request, ([0, 5, 6, 7],), 103)
        (store,) = ours.build_connector_meta(None).stores
        assert store.device_ids == [5, 6, 7]  # the token after 99 sees one of block 1, the one after 103 none
        assert ours.get_num_new_matched_tokens(request_of(104), 0) == (103, True)
        assert ours.get_num_new_matched_tokens(request_of(100), 0) == (99, True)
        ours.update_state_after_alloc(request_of(104), tables_of([0, 0, 8, 9]), 103)
        (load,) = ours.build_connector_meta(None).loads
        assert (load.device_ids, load.host_ids) == ([8, 9], store.host_ids[1:])

    @pytest.mark.parametrize("mode", ["none", "align"])
    def test_of_mamba_the_last_state_alone(self, mode: str) -> None:
        ours, request = connector(f"mamba {mode}", "full"), request_of(101)
        assert ours.update_state_before_preempt(request, ([0, 0, 3, 4], [5, 6, 7, 8]), 100) == 1 + 4
        (store,) = ours.build_connector_meta(None).stores
        assert store.device_ids == [4, 5, 6, 7, 8]
        assert ours.get_num_new_matched_tokens(request, TOKENS) == (100 - TOKENS, True)
        ours.update_state_after_alloc(request, tables_of([0, 0, 0, 9], [5, 1, 2, 3]), 100 - TOKENS)
        (load,) = ours.build_connector_meta(None).loads
        assert (load.device_ids, load.host_ids) == ([9, 1, 2, 3], [store.host_ids[i] for i in (0, 2, 3, 4)])

    def test_a_state_is_of_no_use_to_a_request_that_lost_tokens(self) -> None:
        """Those of rejected drafts, or of output that was dropped."""
        ours, request = connector("mamba none", "full"), request_of(100)
        ours.update_state_before_preempt(request, ([0, 0, 0, 4], [5, 6, 7, 8]), 101)
        assert ours.get_num_new_matched_tokens(request, 0) == (0, False)
        ours.update_state_after_alloc(request, tables_of([4], [5]), 0)
        assert ours.store.counters["swap_dropped_taken_back"] == 1
        assert ours.store.free_blocks == 8

    def test_a_block_that_vllm_has_given_back_is_never_stored(self) -> None:
        ours, request = connector("window 40"), request_of(105)
        assert ours.update_state_before_preempt(request, ([0, 0, 6, 7],), 104) == 2
        assert ours.update_state_before_preempt(request, ([0, 0, 0, 7],), 104) is None
        assert ours.store.counters["swap_dropped_failed"] == 1
        assert ours.store.free_blocks == 8

    def test_chunks_that_read_nothing_before_their_end_are_not_kept(self) -> None:
        ours, request = connector("chunk 64"), request_of(65)
        assert ours.update_state_before_preempt(request, ([0, 0],), 64) is None
        assert ours.store.counters["swap_refused_empty"] == 1
        assert ours.update_state_before_preempt(request_of(60), ([1, 2],), 64) == 2
        assert ours.get_num_new_matched_tokens(request, 0) == (0, False)  # it goes on after 64, which needs no block
        ours.update_state_after_alloc(request, tables_of([]), 0)
        assert ours.store.free_blocks == 8


class Recorder:
    """A copier that notes what it is asked, and does what it is told."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.fails = False

    def store(self, *args: Any, beside: bool = False) -> int:
        self._note(*(("store beside",) if beside else ("store",)), *args)
        return len(self.asked)

    def await_store(self, *args: Any) -> None:
        self._note("await", *args)

    def load(self, *args: Any) -> None:
        self._note("load", *args)

    def _note(self, *args: Any) -> None:
        self.asked.append(args)
        if self.fails:
            raise OSError("as told")

    def finished(self) -> tuple[set[str], set[str]]:
        return {one[1] for one in self.asked if one[0] == "load"}, set()

    def moved(self) -> list[Any]:
        return []


@pytest.fixture
def worker() -> tuple[Any, Recorder]:
    from sloserve.vllm_plugin.swap.worker import SwapWorker

    return SwapWorker(recorder := Recorder()), recorder


def orders(stores: list[Any] | None = None, loads: list[Any] | None = None) -> Any:
    from sloserve.vllm_plugin.swap.messages import Copy, SwapOrders

    return SwapOrders([Copy(*one) for one in stores or []], [Copy(*one) for one in loads or []])


class TestWorker:
    def test_the_same_orders_are_carried_out_once(self, worker: tuple[Any, Recorder]) -> None:
        """The V2 model runner's connector may get the same metadata twice."""
        same = orders([("a", [1], [2])], [("b", [3], [4])])
        for _ in range(2):
            worker[0].store(same)
            worker[0].load(same)
        assert worker[1].asked == [("store", [1], [2]), ("load", "b", [3], [4])]

    def test_stores_go_on_beside_steps_until_one_must_wait_for_them(self, worker: tuple[Any, Recorder]) -> None:
        first = orders([("a", [1], [2], 1), ("b", [3], [4]), ("c", [5], [6], 2), ("d", [6], [1], 3)])
        first.awaited = 1
        worker[0].store(first)
        assert [one[0] for one in worker[1].asked] == ["store", "store", "store beside", "store beside"]
        for awaited, last in ((1, ("store beside", [6], [1])), (3, ("await", 4)), (math.inf, ("await", 4))):
            step = orders()
            step.awaited = awaited
            worker[0].store(step)
            assert worker[1].asked[-1] == last

    def test_a_wait_that_fails_leaves_nothing_to_be_loaded(self, worker: tuple[Any, Recorder]) -> None:
        ours, recorder = worker
        beside = orders([("a", [1], [2], 1), ("b", [3], [4], 2)])
        beside.awaited = 0
        ours.store(beside)
        recorder.fails = True
        ours.store(orders())
        recorder.fails = False
        assert ours.report().failed_stores == {"a", "b"}
        ours.load(orders(loads=[("a again", [5], [2]), ("b again", [6], [4])]))
        assert ours.ended() == ({"a again", "b again"}, {"a again", "b again"})

    def test_what_was_not_stored_is_not_loaded_until_it_is_stored_anew(self, worker: tuple[Any, Recorder]) -> None:
        ours, recorder = worker
        recorder.fails = True
        ours.store(orders([("a", [1, 2], [0, 1])]))
        recorder.fails = False
        assert ours.report().failed_stores == {"a"}
        ours.load(orders(loads=[("a", [5], [1])]))
        assert ours.ended() == ({"a"}, {"a"})
        ours.store(orders([("b", [3], [1])]))
        ours.load(orders(loads=[("b", [5], [1])]))
        assert ours.ended() == ({"b"}, set())
        assert ours.report() is None

    def test_a_load_is_good_only_where_every_rank_has_it(self) -> None:
        """vLLM waits for all ranks; one that failed makes the load fail, and a failed store drops the state."""
        from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
        from vllm.v1.outputs import KVConnectorOutput

        from sloserve.vllm_plugin.swap.messages import CopyTraffic, SwapReport

        def output(ended: set[str], failed: set[str], report: SwapReport | None) -> Any:
            found = KVConnectorOutput(finished_recving=ended, failed_recving=failed, kv_connector_worker_meta=report)
            return SimpleNamespace(kv_connector_output=found)

        ranks = KVOutputAggregator(expected_finished_count=2)
        told = [SwapReport({"c"}, CopyTraffic(5, 2.0)), SwapReport({"d"}, CopyTraffic(5, 3.0))]
        first: Any = ranks.aggregate([output({"a", "b"}, set(), told[0]), output({"b"}, {"b"}, told[1])])
        assert first.kv_connector_output.finished_recving == {"b"}
        assert first.kv_connector_output.failed_recving == {"b"}
        assert first.kv_connector_output.kv_connector_worker_meta == SwapReport({"c", "d"}, CopyTraffic(10, 3.0))
        later: Any = ranks.aggregate([output(set(), set(), None), output({"a"}, set(), None)])
        assert (later.kv_connector_output.finished_recving, later.kv_connector_output.failed_recving) == ({"a"}, set())


def calls(function: Callable[..., Any], *names: str) -> list[int]:
    """Where ``names`` are first called in the source of ``function``."""
    source = inspect.getsource(function)
    return [source.index(f".{name}(") for name in names]


class TestOrderOfCalls:
    """A store must come before whatever a step writes: held against the source of the runner that is installed."""

    def test_v1_stores_before_anything_else(self) -> None:
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        found = calls(GPUModelRunner.execute_model, "handle_preemptions", "_update_states", "_model_forward")
        assert found == sorted(found)

    def test_v2_writes_before_it_stores_only_what_we_refuse(self) -> None:
        """Zeroed blocks are refused; copies on write belong to hits within a block, which Mamba layers alone have."""
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner

        found = calls(GPUModelRunner.execute_model, "update_requests", "pre_forward", "run_fullgraph")
        assert found == sorted(found)
        source = inspect.getsource(GPUModelRunner.update_requests)
        assert source.count("self.kv_caches") == source.count("copy_kv_cache_blocks_inplace(")
        assert "if scheduler_output.new_block_ids_to_zero:" in source

    def test_v2_loads_behind_the_forward_pass(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from vllm.v1.worker.gpu import kv_connector

        told: list[str] = []
        ours = SimpleNamespace(
            **{
                name: lambda *args, name=name, **kwargs: told.append(name)
                for name in ("register_kv_caches", "set_host_xfer_buffer_ops", "handle_preemptions")
            },
            bind_connector_metadata=lambda metadata: told.append("bind"),
        )
        monkeypatch.setattr(kv_connector, "get_kv_transfer_group", lambda: ours)
        monkeypatch.setattr(kv_connector.ActiveKVConnector, "_start_load_kv", lambda self: told.append("load"))
        active = kv_connector.ActiveKVConnector(SimpleNamespace(), {})
        active.pre_forward(SimpleNamespace(kv_connector_metadata=orders(), has_sync_kv_loads=False))
        assert told == ["register_kv_caches", "set_host_xfer_buffer_ops", "handle_preemptions", "bind"]
        found = calls(kv_connector.ActiveKVConnector.post_forward, "_start_load_kv", "get_transfer_results")
        assert found == sorted(found)


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"kv_role": "kv_producer"}, "one half of a prefill and decode pair; SwapConnector needs kv_both"),
            ({"parallel": {"pipeline_parallel_size": 2}}, "pipeline_parallel_size 2: no step is the whole model's"),
            ({"parallel": {"decode_context_parallel_size": 2}}, "a rank's blocks hold only some of their tokens"),
            ({"is_encoder_decoder": True}, "encoder-decoder models"),
            ({"layers": ("full", "sinks")}, "SinkFullAttentionSpec, a kind of KV cache of which it was not shown"),
            ({"layers": ("mamba align 2",)}, "MambaSpec with states of draft tokens"),
            ({"layers": ("full", "mamba all")}, "MambaSpec with mamba_cache_mode all"),
            ({"aux_output_config": SimpleNamespace(enabled=True)}, "routed experts that are returned"),
        ],
    )
    def test_it_says_what_it_does_not_work_with(self, changes: dict[str, Any], sentence: str) -> None:
        from sloserve.vllm_plugin.swap.refusals import check_supported

        layers = changes.pop("layers", ())
        with pytest.raises(ConfigError, match=f"^KV cannot be swapped: .*{sentence}"):
            check_supported(*configs(*layers, **changes))

    @pytest.mark.parametrize("layers", [("window 64",), ("full", "window 64", "chunk 96"), ("mamba none", "full")])
    def test_it_works_with_what_gives_blocks_back(self, layers: tuple[str, ...]) -> None:
        from sloserve.vllm_plugin.swap.refusals import check_supported

        check_supported(*configs(*layers))

    def test_a_cache_of_several_precisions_is_refused_where_new_blocks_are_zeroed_first(self) -> None:
        from sloserve.vllm_plugin.swap.refusals import refusal

        cache = SimpleNamespace(
            kv_cache_groups=configs()[1].kv_cache_groups,
            kv_cache_tensors=[],
            needs_kv_cache_zeroing=True,
        )
        assert refusal(configs()[0], cache) is None
        assert "VLLM_USE_V2_MODEL_RUNNER=0" in str(refusal(configs(use_v2_model_runner=True)[0], cache))

    def test_mamba_layers_are_refused_where_new_blocks_are_zeroed_first(self) -> None:
        from sloserve.vllm_plugin.swap.refusals import refusal

        settings, cache = configs("mamba align", "full", use_v2_model_runner=True)
        assert "of Mamba layers" in str(refusal(settings, cache))

    @pytest.mark.parametrize(
        ("children", "sentence"),
        [
            ([("OffloadingConnector", "kv_both"), ("SwapConnector", "kv_both")], "name SwapConnector once, and first"),
            ([("SwapConnector", "kv_both"), ("SwapConnector", "kv_both")], "name SwapConnector once, and first"),
            ([("SwapConnector", "kv_both"), ("NixlConnector", "kv_consumer")], "NixlConnector has kv_role kv_consumer"),
        ],
    )
    def test_ours_stands_first_in_a_multi_connector(self, children: list[tuple[str, str]], sentence: str) -> None:
        from sloserve.vllm_plugin.swap.refusals import check_place

        with pytest.raises(ConfigError, match=sentence):
            check_place([{"kv_connector": name, "kv_role": role} for name, role in children])

    @pytest.mark.parametrize(
        ("space", "sentence"), [(0, "not a number of GiB above 0"), (1e-9, "too small for one KV block")]
    )
    def test_a_pool_that_holds_nothing_is_refused(self, space: float, sentence: str) -> None:
        with pytest.raises(ConfigError, match=sentence):
            connector(space=space)

    def test_ranks_of_a_host_share_the_space(self) -> None:
        from sloserve.engine.swap.host.regions import PoolSize

        assert PoolSize.of(*configs()) == PoolSize(8, BLOCK_BYTES, 1)
        assert PoolSize.of(*configs(parallel={"world_size": 4, "nnodes_within_dp": 2})) == PoolSize(4, BLOCK_BYTES, 4)


class TestWhatVllmIsTold:
    def test_an_unsupported_model_is_refused_at_the_start(self) -> None:
        with pytest.raises(ConfigError, match="KV cannot be swapped: .*encoder-decoder models"):
            connector(is_encoder_decoder=True)

    def test_nothing_is_there_at_first(self) -> None:
        ours, request = connector(), request_of(70)
        assert ours.asked_blocks == 0 and ours.reset_cache() and not ours.has_pending_push_work()
        assert ours.get_num_new_matched_tokens(request, 0) == (0, False)

    def test_a_request_of_which_one_token_is_loaded_is_one_that_loads(self) -> None:
        ours, request = connector(), request_of(34)
        ours.update_state_before_preempt(request, ([4, 2],), 34)
        assert ours.get_num_new_matched_tokens(request, TOKENS) == (1, True)
        assert ours.asked_blocks == 1
        ours.update_state_after_alloc(request, blocks_of(4, 2), 1)
        assert len(ours.build_connector_meta(None).loads) == 1

    def test_it_says_once_that_another_scheduler_keeps_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        said: list[str] = []
        # Not heard through logging, which vLLM configures for the whole process.
        monkeypatch.setattr("sloserve.vllm_plugin.swap.connector.logger.warning", said.append)
        alone, attached = connector(), connector()
        attached.attach(lambda request, blocks: None, lambda report: None, lambda: False, lambda: 0)
        for _ in range(2):
            alone.build_connector_meta(None)
            attached.build_connector_meta(None)
        assert ["keeps nothing without" in text for text in said] == [True]

    def test_orders_say_which_copies_a_step_waits_for_and_of_all_where_that_is_not_known(self) -> None:
        ours, request, awaited = connector(), request_of(70), [4]
        ours.attach(lambda request, blocks: None, lambda report: None, lambda: False, awaited.pop)
        ours.update_state_before_preempt(request, ([4, 2, 6],), 64, ends=True, beside=len)
        orders = ours.build_connector_meta(None)
        assert ([copy.number for copy in orders.stores], orders.awaited) == ([2], 4)
        assert ours.build_connector_meta(None).awaited == math.inf  # the callback raised
        assert ours.store.counters["internal_errors"] == 1

    def test_what_is_to_be_copied_or_is_being_copied_keeps_the_engine_stepping(self) -> None:
        ours, request, copying = connector(), request_of(70), [False]
        ours.attach(lambda request, blocks: None, lambda report: None, lambda: copying[0], lambda: 0)
        ours.update_state_before_preempt(request, ([4, 2, 6],), 70)
        assert ours.has_pending_push_work()
        ours.build_connector_meta(None)
        assert not ours.has_pending_push_work()
        copying[0] = True
        assert ours.has_pending_push_work()


class TestWorkersHalf:
    """Between vLLM's calls and the SwapWorker, which a role of its own has."""

    @pytest.fixture
    def ours(self, worker: tuple[Any, Recorder]) -> Any:
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

        from sloserve.vllm_plugin.swap.connector import SwapConnector

        made = SwapConnector(*configs()[:1], KVConnectorRole.WORKER, configs()[1])
        made._worker = worker[0]
        return made

    def test_orders_reach_the_copier_and_its_results_vllm(self, ours: Any, worker: tuple[Any, Recorder]) -> None:
        same = orders([("a", [1], [2])], [("b", [3], [4]), ("c", [], [])])
        ours.handle_preemptions(same)
        ours.bind_connector_metadata(same)
        ours.start_load_kv(None)
        assert worker[1].asked == [("store", [1], [2]), ("load", "b", [3], [4])]
        found = ours.get_transfer_results(set())
        assert (found.finished_recving, found.failed_recving) == ({"b", "c"}, {"c"})
        assert ours.get_finished(set()) == (None, {"b"})
        worker[1].asked.clear()
        assert ours.get_finished(set()) == (None, None)

    def test_without_a_pool_nothing_is_done(self, ours: Any) -> None:
        ours._worker = None
        ours.handle_preemptions(orders())
        ours.start_load_kv(None)
        assert not ours.get_transfer_results(set()).finished_recving
        assert ours.build_connector_worker_meta() is None

    def test_shutdown_waits_for_copies_and_ends_the_copier(self, ours: Any, worker: tuple[Any, Recorder]) -> None:
        from sloserve.vllm_plugin.swap.connector import DRAIN_S

        told: list[Any] = []
        worker[1].drain = lambda limit_s: told.append(limit_s) or True  # type: ignore[attr-defined]
        worker[1].close = lambda: told.append("close")  # type: ignore[attr-defined]
        ours._pool = SimpleNamespace(close=lambda: told.append("pool"))
        ours.shutdown()
        ours.shutdown()
        assert told == [DRAIN_S, "close", "pool"]

    @pytest.mark.parametrize(("by_bytes", "utilization"), [(None, 0.5), (1 << 30, None)])
    def test_a_cache_sized_in_bytes_leaves_the_utilization_out(
        self, by_bytes: int | None, utilization: float | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from sloserve.vllm_plugin.swap import connector as module

        monkeypatch.setattr(module, "gpu_pool", lambda *args: "pool")
        monkeypatch.setattr(module, "gpu_copier", lambda *args: args[-1])
        cache = SimpleNamespace(kv_cache_memory_bytes=by_bytes, gpu_memory_utilization=0.5)
        caches: Any = {"l0": SimpleNamespace(device=SimpleNamespace(type="cuda"))}
        assert module._pool_and_copier([], 9, 8, caches, cache) == ("pool", utilization)
