"""Copies that go on beside a GPU's work: who makes them, what it takes of the GPU, and what is told of them."""

import logging
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.core.kernels.kv_copy import Region
from sloserve.engine.swap.host import cuda_library
from sloserve.engine.swap.host.copier import Copier, Moved
from sloserve.engine.swap.host.cuda_copier import CudaCopier
from sloserve.engine.swap.host.cuda_library import EndedCopy
from sloserve.engine.swap.host.host_pool import HostPool
from sloserve.engine.swap.host.op_transfer import OpTransfer, descriptors
from sloserve.vllm_plugin.swap.cuda_start import check_staging, faster, gpu_copier, gpu_pool, staging_bytes_for

MIB, GIB = 2**20, 2**30


class FakeTransfer:
    """Copies are over after so many polls. clock: to which a copy adds what it takes."""

    staging_bytes = 0

    def __init__(self, polls: int = 1, fails: str | None = None, clock: list[float] | None = None) -> None:
        self.polls, self.fails, self.clock = polls, fails, clock
        self.running: list[tuple[int, bool, int]] = []
        self.tickets, self.closed, self.asked, self.beside = 0, 0, 0, 0
        self.awaited: list[int] = []
        self.copied: list[tuple[bool, list[int], list[int]]] = []

    def _begin(self, to_host: bool, device_ids: Any, host_ids: Any) -> int:
        if self.fails:
            raise RuntimeError(self.fails)
        self.tickets += 1
        self.asked = 0
        self.copied.append((to_host, list(device_ids), list(host_ids)))
        self.running.append((self.tickets, to_host, len(host_ids)))
        return self.tickets

    def store(self, device_ids: Any, host_ids: Any, *, beside: bool = False) -> int:
        self.beside += beside
        return self._begin(True, device_ids, host_ids)

    def await_store(self, ticket: int) -> None:
        self.awaited.append(ticket)

    def load(self, device_ids: Any, host_ids: Any) -> int:
        return self._begin(False, device_ids, host_ids)

    def ended(self) -> list[EndedCopy]:
        if self.fails:
            raise RuntimeError(self.fails)
        self.asked += 1
        if self.clock:
            self.clock[0] += 1e-3
        if self.asked < self.polls:
            return []
        found, self.running = [EndedCopy(t, out, 10 * n, 0.5) for t, out, n in self.running], []
        return found

    def close(self) -> None:
        self.closed += 1


def test_loads_are_told_once_when_they_are_over() -> None:
    transfer = FakeTransfer(polls=2)
    copier: Copier = CudaCopier(transfer)
    copier.store([3], [0])
    copier.load("a", [1, 2], [0, 4])
    copier.load("nothing", [], [])
    copier.store([], [])
    assert copier.finished() == ({"nothing"}, set())
    assert copier.finished() == ({"a"}, set()) and copier.finished() == (set(), set())
    assert copier.moved() == [Moved(True, 10, 0.5), Moved(False, 20, 0.5)] and copier.moved() == []
    assert transfer.copied == [(True, [3], [0]), (False, [1, 2], [0, 4])]


def test_a_store_beside_the_engine_is_awaited_while_it_runs() -> None:
    transfer = FakeTransfer(polls=2)
    copier = CudaCopier(transfer)
    assert copier.store([3], [0], beside=True) == 1 and copier.store([4], [1]) == 2 and copier.store([], []) == 0
    assert transfer.beside == 1
    copier.await_store(1)
    copier.moved(), copier.moved()  # it is over with the second
    copier.await_store(1)
    assert transfer.awaited == [1]


def test_a_drain_waits_and_leaves_tickets_to_be_told() -> None:
    transfer = FakeTransfer(polls=4)
    copier = CudaCopier(transfer)
    copier.load("a", [1], [0])
    assert copier.drain(0.0) is False and copier.drain(5.0) is True
    assert copier.finished() == ({"a"}, set())
    copier.close()
    assert transfer.closed == 1


def test_a_gpu_that_fails_fails_its_loads(caplog: pytest.LogCaptureFixture) -> None:
    transfer = FakeTransfer()
    copier = CudaCopier(transfer)
    copier.store([2], [1])
    copier.load("a", [1], [0])
    transfer.fails = "CUDA: an illegal memory access (700)"
    assert copier.finished() == (set(), {"a"}) and copier.drain(0.0)
    assert "the GPU failed while KV was copied; 1 loads are lost" in caplog.text
    with pytest.raises(RuntimeError, match="illegal memory access"):
        copier.load("b", [1], [0])


@pytest.mark.parametrize(
    ("regions", "staging"),
    [
        ([Region(8, 65536, 65536)], 0),
        ([Region(8, 131072, 65536)], 0),
        ([Region(8, 32768, 32768)], 128 * MIB),
        ([Region(8, 65536, 65536)] * 2, 128 * MIB),
    ],
)
def test_a_block_that_is_one_long_run_needs_no_staging(regions: list[Region], staging: int) -> None:
    assert staging_bytes_for(regions) == staging


def test_staging_must_fit_into_what_vllm_leaves() -> None:
    check_staging(0, 0, 80 * GIB, 1.0)
    check_staging(128 * MIB, 6 * GIB, 80 * GIB, 0.92)
    check_staging(128 * MIB, 128 * MIB, 80 * GIB, None)
    with pytest.raises(
        ConfigError,
        match=r"128 MiB of the GPU for staging, and vLLM leaves 81 MiB of 80.0 GiB; lower --gpu-memory-utilization "
        r"from 0.999 to 0.998, or leave --swap-space-gib out",
    ):
        check_staging(128 * MIB, 6 * GIB, 80 * GIB, 0.999)
    with pytest.raises(
        ConfigError, match="leaves 100 MiB of 80.0 GiB; lower --gpu-memory-utilization from 0.92 to 0.919"
    ):
        check_staging(128 * MIB, 100 * MIB, 80 * GIB, 0.92)
    with pytest.raises(ConfigError, match="leaves 100 MiB of 80.0 GiB; give --kv-cache-memory-bytes 28 MiB less"):
        check_staging(128 * MIB, 100 * MIB, 80 * GIB, None)


REGIONS = [Region(2**20, 8 * MIB, 4 * MIB), Region(2**30, 4 * MIB, 4 * MIB)]


def test_the_faster_is_chosen_the_others_are_closed_and_it_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("sloserve.vllm_plugin.swap.cuda_start.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    slow, fast, broken = FakeTransfer(9, clock=clock), FakeTransfer(3, clock=clock), FakeTransfer(fails="no driver")
    with caplog.at_level(logging.INFO):
        chosen = faster({"slow": slow, "fast": fast, "broken": broken}, REGIONS, 100, 3, lambda: None)
    assert chosen == "fast" and (slow.closed, fast.closed, broken.closed) == (1, 0, 1)
    assert [(out, host) for out, _, host in fast.copied] == [(True, [0, 1, 2]), (False, [0, 1, 2])] * 3
    assert fast.copied[0][1] == fast.copied[1][1] == [66, 33, 0]
    assert "KV blocks of 8192 KiB in 2 runs are copied by fast; 24 MiB: slow 2.8 GB/s out and 2.8 in" in caplog.text
    assert "fast 8.4 GB/s out and 8.4 in, engine held up for 0.00 ms; broken fails (no driver)" in caplog.text


def test_copies_that_nobody_can_make_are_refused_at_the_start() -> None:
    transfers: Any = {"kernels": FakeTransfer(fails="too old"), "op": FakeTransfer(fails="missing")}
    with pytest.raises(
        ConfigError, match=r"cannot be swapped: kernels fails \(too old\); op fails \(missing\). Leave --"
    ):
        faster(transfers, REGIONS, 1, 1, lambda: None)
    with pytest.raises(ConfigError, match="cannot be swapped: no copier works here"):
        faster({}, REGIONS, 1, 1, lambda: None)


def pool_of(address: int, slice_blocks: int) -> Any:
    return SimpleNamespace(address=address, slice_blocks=slice_blocks)


def test_descriptors_of_each_run_of_each_block() -> None:
    regions = [Region(1000, 10, 6), Region(2000, 20, 4)]
    cache, packed, sizes = descriptors(regions, pool_of(5000, 9), [2, 0], [3, 1])
    assert cache.tolist() == [1000, 2000, 1020, 2040] and packed.tolist() == [5010, 5016, 5030, 5036]
    assert sizes.tolist() == [6, 4, 6, 4]


def test_descriptors_of_blocks_that_touch_are_one_within_a_slice_of_the_pool() -> None:
    cache, packed, sizes = descriptors([Region(1000, 8, 8)], pool_of(0, 4), [4, 5, 6, 7, 0, 1], [2, 3, 4, 5, 0, 8])
    assert cache.tolist() == [1000, 1032, 1048, 1008] and packed.tolist() == [0, 16, 32, 64]
    assert sizes.tolist() == [8, 16, 16, 8]
    padded = descriptors([Region(1000, 16, 8)], pool_of(0, 4), [4, 5], [0, 1])
    assert [column.tolist() for column in padded] == [[1064, 1080], [0, 8], [8, 8]]


class FakeCuda:
    """Streams and events that write down the order in which they are used."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.names = iter(["out", "in"])
        self.Event = lambda enable_timing: SimpleNamespace(
            record=lambda stream: self.log.append(f"record on {stream.name}"),
            query=lambda: True,
            elapsed_time=lambda end: 2.0,
        )

    def Stream(self) -> Any:
        return self._stream(next(self.names))

    def _stream(self, name: str) -> Any:
        return SimpleNamespace(
            name=name,
            wait_stream=lambda other: self.log.append(f"{name} waits for {other.name}"),
            wait_event=lambda event: self.log.append(f"{name} waits"),
            synchronize=lambda: self.log.append(f"synchronize {name}"),
        )

    def current_stream(self) -> Any:
        return self._stream("engine")

    def stream(self, stream: Any) -> "FakeCuda":
        return self

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def test_the_op_is_ordered_like_the_kernels() -> None:
    cuda = FakeCuda()
    pool: HostPool = pool_of(0, 4)

    def op(source: Any, target: Any, sizes: Any) -> None:
        cuda.log.append(f"{source.tolist()} to {target.tolist()}")

    transfer = OpTransfer(op, [Region(1000, 16, 8)], pool, cuda, np.asarray)
    assert transfer.store([1], [2]) == 1 and transfer.load([3], [2]) == 2
    assert cuda.log == [
        "out waits for engine", "record on out", "[1016] to [16]", "record on out", "engine waits",
        "in waits for engine", "in waits", "record on in", "[16] to [1048]", "record on in",
    ]  # fmt: skip
    assert transfer.ended() == [EndedCopy(1, True, 8, 2e-3), EndedCopy(2, False, 8, 2e-3)] and transfer.ended() == []


def test_the_engine_waits_for_an_op_beside_it_when_it_is_told_to() -> None:
    cuda = FakeCuda()
    transfer = OpTransfer(lambda *_: None, [Region(1000, 16, 8)], pool_of(0, 4), cuda, np.asarray)
    ticket = transfer.store([1], [2], beside=True)
    assert "engine waits" not in cuda.log
    transfer.await_store(ticket + 1)
    assert "engine waits" not in cuda.log
    transfer.await_store(ticket)
    assert cuda.log[-1] == "engine waits"


def test_an_op_that_fails_leaves_nothing_under_way() -> None:
    cuda = FakeCuda()

    def op(*_: Any) -> None:
        raise RuntimeError("invalid argument")

    transfer = OpTransfer(op, [Region(1000, 16, 8)], pool_of(0, 4), cuda, np.asarray)
    with pytest.raises(RuntimeError, match="invalid argument"):
        transfer.load([3], [2])
    assert cuda.log[-1] == "synchronize in" and transfer.ended() == []


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    cuda: Any = FakeCuda()
    cuda.device = lambda device: nullcontext()
    cuda.mem_get_info = lambda: (6 * GIB, 80 * GIB)
    cuda.current_device = lambda: 0
    cuda.get_device_properties = lambda device: SimpleNamespace(pci_domain_id=0, pci_bus_id=10, pci_device_id=0)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, from_numpy=np.asarray))
    op = SimpleNamespace(swap_blocks_batch=lambda source, target, sizes: cuda.log.append(f"{len(sizes)} transfers"))
    monkeypatch.setitem(sys.modules, "vllm._custom_ops", op)
    return cuda


def test_without_the_library_vllms_op_copies_and_a_line_says_why(
    fake_torch: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cuda_library._csrc, "__file__", str(tmp_path / "_csrc.so"))
    pool = HostPool(4, 64)
    copier = gpu_copier([Region(4096, 32, 32), Region(8192, 32, 32)], 10, pool, "cuda:0", 0.92)
    assert isinstance(copier.transfer, OpTransfer)
    assert "not copied by sloserve's kernels: sloserve was built without nvcc, see docs/swap.md" in caplog.text
    copier.store([9], [3])
    assert fake_torch.log[-3:] == ["2 transfers", "record on out", "engine waits"]
    pool.close()


def test_a_gpu_without_room_for_staging_is_refused(fake_torch: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sloserve.vllm_plugin.swap.cuda_start.built_library", lambda: None)
    pool = HostPool(4, 64)
    with pytest.raises(ConfigError, match="needs 128 MiB of the GPU for staging, and vLLM leaves 81 MiB of 80.0 GiB"):
        gpu_copier([Region(4096, 32, 32), Region(8192, 32, 32)], 10, pool, "cuda:0", 0.999)
    pool.close()


@pytest.mark.slow
def test_blocks_above_a_slice_of_staging_are_left_to_vllms_op(
    fake_torch: FakeCuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sloserve.vllm_plugin.swap.cuda_start.built_library", lambda: None)
    pool = HostPool(1, 34 * MIB)
    copier = gpu_copier([Region(2**30, 17 * MIB, 17 * MIB)] * 2, 1, pool, "cuda:0", 0.92)
    assert isinstance(copier.transfer, OpTransfer) and "a block of 35651584 bytes is above 16777216" in caplog.text
    pool.close()


def test_a_pool_without_nvidias_driver_is_not_pinned(
    fake_torch: FakeCuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_driver() -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr("sloserve.vllm_plugin.swap.cuda_start.CudaPinner", no_driver)
    pool = gpu_pool(4, 64, "cuda:0")
    assert not pool.pinned and "the host pool is not pinned, and copies take longer: libcuda" in caplog.text
    pool.close()
