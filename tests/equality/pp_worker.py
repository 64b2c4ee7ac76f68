"""A stage of a pipeline on the CPU, where vLLM leaves one step of the GPU's worker out."""

from typing import Any

from vllm.distributed import get_pp_group
from vllm.v1.worker.cpu_worker import CPUWorker


class PipelineWorker(CPUWorker):
    """vLLM's, with the buffers that a later stage receives into: the GPU's worker makes them in its dummy run."""

    def compile_or_warm_up_model(self) -> Any:
        runner = self.model_runner
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )
        return super().compile_or_warm_up_model()
