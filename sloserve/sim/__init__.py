"""Workloads and experiments: what arrives, what it asks for, and how the policies compare on it.

A workload comes from a recorded trace (:mod:`~sloserve.sim.readers`) or from generators
(:mod:`~sloserve.sim.generators`, :mod:`~sloserve.sim.lengths`, :mod:`~sloserve.core.speeds`), gets its SLOs from an
assignment (:mod:`~sloserve.sim.slo_file`, :mod:`~sloserve.sim.named_slos`) and is found by name in
:mod:`~sloserve.sim.workloads`. One seed decides all of it, so every policy sees the same requests.
"""
