"""The library of csrc/cuda through ctypes, with a GPU in its place whose streams run on the host."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sloserve.core.kernels.kv_copy import Region
from sloserve.engine.swap.host import cuda_library, host_pool
from sloserve.engine.swap.host.cuda_copier import CudaCopier
from sloserve.engine.swap.host.cuda_library import CudaTransfer, loaded
from sloserve.engine.swap.host.host_pool import HostPool

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
LAYERS, BLOCKS, BYTES = 3, 40, 4112
ENGINE = 7  # a stream's address


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    target, source = tmp_path_factory.mktemp("library") / "fake.so", ROOT / "tests" / "csrc" / "fake_kv_library.cpp"
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler is not None
    options = ["-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{ROOT / 'csrc' / 'include'}"]
    subprocess.run([compiler, *options, source, "-o", target], check=True, timeout=240)
    found = loaded(target)
    found.fake_write.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    found.fake_finish.argtypes = (ctypes.c_void_p,)
    found.fake_fail_after.argtypes = found.fake_free_bytes.argtypes = (ctypes.c_int64,)
    found.fake_transfers.restype = ctypes.c_int64
    return found


class Engine:
    """A cache of three layers, and work of the engine's that writes it."""

    def __init__(self, library: ctypes.CDLL, pool: HostPool) -> None:
        self.library, self.pool = library, pool
        self.cache = np.random.default_rng(1).integers(0, 256, (LAYERS, BLOCKS, BYTES), np.uint8)
        self.regions = [Region(layer.ctypes.data, BYTES, BYTES) for layer in self.cache]

    def transfer(self, staging_bytes: int) -> CudaTransfer:
        return CudaTransfer(
            self.library, 0, self.regions, BLOCKS, self.pool, staging_bytes=staging_bytes, compute=lambda: ENGINE
        )

    def write(self, block: int, value: int) -> None:
        """A step that writes a block when its turn comes."""
        for layer in self.cache:
            self.library.fake_write(ENGINE, layer[block].ctypes.data, value, BYTES)


@pytest.fixture
def engine(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(host_pool, "SLICE_BYTES", 1)
    pool = HostPool(3 * 1024, LAYERS * BYTES)
    assert pool.slice_blocks == 256, "runs of host blocks end at its slices"
    yield Engine(library, pool)
    library.fake_fail_after(-1)
    library.fake_free_bytes(2**40)
    pool.close()


def test_out_and_in_between_steps_that_write(engine: Engine) -> None:
    transfer = engine.transfer(4 * 8 * LAYERS * BYTES)
    assert transfer.staging_bytes == 4 * 8 * LAYERS * BYTES
    copier = CudaCopier(transfer)
    before = engine.cache.copy()
    out, back = np.arange(20)[::-1], np.arange(20, 40)
    hosts = np.arange(250, 270)  # across the slices of the pool
    copier.store(out.tolist(), hosts.tolist())
    for block in range(BLOCKS):
        engine.write(block, 0)
    copier.load("a", back.tolist(), hosts.tolist())
    done = set[str]()
    while not done:
        done, failed = copier.finished()
        assert not failed
    assert done == {"a"} and np.array_equal(engine.cache[:, back], before[:, out])
    engine.library.fake_finish(ENGINE)
    assert not engine.cache[:, :20].any() and np.array_equal(engine.cache[:, back], before[:, out])
    assert np.array_equal(engine.pool.memory[hosts].reshape(20, LAYERS, BYTES), before[:, out].swapaxes(0, 1))
    assert [(to_host, num_bytes) for to_host, num_bytes, _ in copier.moved()] == [
        (True, 20 * LAYERS * BYTES),
        (False, 20 * LAYERS * BYTES),
    ]
    copier.close()
    copier.close()


def test_a_step_that_writes_waits_for_a_store_beside_the_steps_before(engine: Engine) -> None:
    copier = CudaCopier(engine.transfer(4 * 8 * LAYERS * BYTES))
    before = engine.cache.copy()
    number = copier.store(list(range(20)), list(range(250, 270)), beside=True)
    for block in range(20, BLOCKS):
        engine.write(block, 0)
    engine.library.fake_finish(ENGINE)
    assert not engine.cache[:, 20:].any()
    copier.await_store(number)
    for block in range(20):
        engine.write(block, 0)
    engine.library.fake_finish(ENGINE)
    assert copier.drain(10.0) and not engine.cache.any()
    assert np.array_equal(engine.pool.memory[250:270].reshape(20, LAYERS, BYTES), before[:, :20].swapaxes(0, 1))
    copier.close()


def test_neighbouring_host_blocks_go_in_one_transfer(engine: Engine) -> None:
    transfer = engine.transfer(40 * 8 * LAYERS * BYTES)
    before = engine.library.fake_transfers()
    transfer.store(np.arange(40), np.arange(40))
    assert engine.library.fake_transfers() == before + 1
    transfer.store(np.arange(40)[::-1], np.arange(236, 276)[::-1])
    assert engine.library.fake_transfers() == before + 3
    transfer.close()


def test_what_cannot_be_says_so(engine: Engine) -> None:
    with pytest.raises(RuntimeError, match=r"staging_bytes: 0 is not within \d+ to 134217728"):
        engine.transfer(0)
    engine.library.fake_free_bytes(100)
    with pytest.raises(RuntimeError, match="CUDA: staging memory: out of memory"):
        engine.transfer(2**20)
    engine.library.fake_free_bytes(2**40)
    transfer = engine.transfer(2**20)
    with pytest.raises(RuntimeError, match="device_ids: 40 is not within 0 to 39, the blocks of the KV cache"):
        transfer.store([40], [0])
    with pytest.raises(ValueError, match="there must be one for each"):
        transfer.store([1, 2], [0])
    assert transfer.store([1], [0]) > 0, "refused ids leave it as it was"
    transfer.close()


def test_a_copy_that_fails_is_the_last(engine: Engine) -> None:
    copier = CudaCopier(engine.transfer(2**20))
    engine.library.fake_fail_after(5)
    with pytest.raises(RuntimeError, match="CUDA: made to fail"):
        copier.load("a", [1], [0])
    engine.library.fake_fail_after(-1)
    with pytest.raises(RuntimeError, match="an earlier copy failed; restart the engine"):
        copier.load("b", [1], [0])
    copier.close()


def test_files_that_are_no_such_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: ctypes.CDLL) -> None:
    with pytest.raises(OSError, match=r"_csrc\S* has no function abi"):
        loaded(Path(str(cuda_library._csrc.__file__)))
    monkeypatch.setattr(cuda_library, "ABI", 99)
    with pytest.raises(OSError, match=r"fake.so is of version 2, and 99 is needed; build sloserve again"):
        loaded(Path(library._name))
    monkeypatch.setattr(cuda_library._csrc, "__file__", str(tmp_path / "_csrc.so"))
    with pytest.raises(OSError, match="built without nvcc"):
        cuda_library.built_library()
