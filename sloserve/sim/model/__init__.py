"""A model of one vLLM engine: vLLM's scheduling rules on arrays, for runs by the thousand. Imports nothing of vLLM.

:mod:`~sloserve.sim.model.scheduler` has the rules of AsyncScheduler, :mod:`~sloserve.sim.model.planned` adds the rules
of SLOScheduler, :mod:`~sloserve.sim.model.engine` is the loop around them. tests/sim/model compares the rules step by
step with the vLLM version ``MODELLED_VLLM``.
"""

MODELLED_VLLM = "0.32.0"
"""The vLLM version that this model copies the rules of."""
