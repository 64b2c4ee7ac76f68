"""Seeded requests on a CPU runner whose prompts are cut. On engines: tests/equality/test_cut_prompts.py."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.vllm_plugin import seeded_prompts


class Generator:
    """As torch's on a CPU."""

    def get_offset(self) -> int:
        raise RuntimeError("CPU Generator does not use offset")

    set_offset: Callable[..., Any] = get_offset


class Runner:
    """What vLLM's runner does at the end of a step, as far as generators go."""

    fails = False

    def __init__(self, discarded: list[bool], seeded: list[int], device: str = "cpu") -> None:
        self.device = SimpleNamespace(type=device)
        self.discard_request_mask = SimpleNamespace(np=np.array(discarded))
        generators = {row: Generator() for row in seeded}
        metadata = SimpleNamespace(generators=generators)
        self.input_batch = SimpleNamespace(generators=generators, sampling_metadata=metadata)
        self.drawn: list[list[int]] = []

    def sample_tokens(self, grammar_output: Any) -> Any:
        self._sample()
        if self.fails:
            raise ValueError("sampling failed")
        self._bookkeeping_sync()
        return grammar_output

    def _sample(self) -> None:
        self.drawn.append(sorted(self.input_batch.sampling_metadata.generators))

    def _bookkeeping_sync(self) -> None:
        for row in np.flatnonzero(self.discard_request_mask.np):
            generator: Any = self.input_batch.generators.get(int(row))
            if generator is not None:
                generator.set_offset(generator.get_offset() - 4)


def test_a_discarded_token_is_not_drawn_from_the_generator_of_its_request() -> None:
    runner = Runner([True, False, True, False], [0, 1])
    with pytest.raises(RuntimeError, match="does not use offset"):
        runner.sample_tokens(None)
    before = dict(runner.input_batch.generators)
    seeded_prompts.mend(runner)
    assert runner.sample_tokens("grammar") == "grammar"
    assert runner.drawn[-1] == [1]
    assert runner.input_batch.generators == before
    runner.discard_request_mask.np[0] = False
    runner.sample_tokens(None)
    assert runner.drawn[-1] == [0, 1]


def test_generators_come_back_where_sampling_fails() -> None:
    runner = Runner([True], [0])
    seeded_prompts.mend(runner)
    runner.fails = True
    with pytest.raises(ValueError, match="sampling failed"):
        runner.sample_tokens(None)
    assert list(runner.input_batch.generators) == [0]


def test_a_runner_that_moves_no_generator_is_left_alone() -> None:
    class Mended(Runner):
        def _bookkeeping_sync(self) -> None:
            pass

    runner = Mended([True], [0])
    seeded_prompts.mend(runner)
    assert "sample_tokens" not in vars(runner)


def test_a_runner_that_is_not_known_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(Runner):
        def sample_tokens(self, grammar_output: Any) -> Any:
            self._bookkeeping_sync()

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.99.1"))
    with pytest.raises(ConfigError, match=r"^vLLM 0\.99\.1 .* sample_tokens: _sample\b.* use one of 0\.30\.0, "):
        seeded_prompts.mend(Other([True], [0]))
    monkeypatch.delattr(Runner, "_sample")
    with pytest.raises(ConfigError, match="_sample: input_batch, _sample: sampling_metadata"):
        seeded_prompts.mend(Runner([True], [0]))


@pytest.mark.vllm
class TestVllm:
    @pytest.fixture
    def make(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
        """Brings a worker up as vLLM does, with our plugin installed anew; returns its model runner."""
        from vllm.v1.worker.worker_base import WorkerWrapperBase

        class Worker:
            def __init__(self, runner: Any) -> None:
                self.runner = runner

            def init_device(self) -> None:
                if self.runner is not None:
                    self.model_runner = self.runner

        def make(runner: Any, *, ours: bool) -> Any:
            monkeypatch.setattr(WorkerWrapperBase, "init_device", lambda self: self.worker.init_device())
            seeded_prompts.install(lambda vllm_config: ours)
            wrapper = WorkerWrapperBase()
            wrapper.worker, wrapper.vllm_config = Worker(runner), SimpleNamespace()
            wrapper.init_device()
            return runner

        return make

    def test_cpu_runners_of_our_engines_are_mended_and_no_others(self, make: Callable[..., Any]) -> None:
        assert "sample_tokens" in vars(make(Runner([True], [0]), ours=True))
        assert "sample_tokens" not in vars(make(Runner([True], [0]), ours=False))
        assert "sample_tokens" not in vars(make(Runner([True], [0], device="cuda"), ours=True))
        make(None, ours=True)  # a worker without a model runner, as the paced one

    def test_this_vllm_needs_the_mend_and_is_as_expected(self) -> None:
        from vllm.v1.worker.cpu_model_runner import CPUModelRunner

        runner = object.__new__(CPUModelRunner)
        runner.input_batch = SimpleNamespace(generators={})
        runner.discard_request_mask = SimpleNamespace(np=np.zeros(1, np.bool_))
        seeded_prompts.mend(runner)
        assert "sample_tokens" in vars(runner)

    def test_the_second_runner_has_no_generators(self) -> None:
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner

        runner = object.__new__(GPUModelRunner)
        seeded_prompts.mend(runner)
        assert "sample_tokens" not in vars(runner)
