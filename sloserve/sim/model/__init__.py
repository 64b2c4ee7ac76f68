"""A model of one vLLM engine: vLLM's scheduling rules on arrays, for runs by the thousand. Imports nothing of vLLM.

:mod:`~sloserve.sim.model.scheduler` has the rules of AsyncScheduler, :mod:`~sloserve.sim.model.planned` those of
SLOScheduler on top, :mod:`~sloserve.sim.model.engine` the loop around them. The rules are vLLM's of the version that
tests/sim/model compares them with, step by step.
"""

MODELLED_VLLM = "0.32.0"
"""The version whose rules these are."""
