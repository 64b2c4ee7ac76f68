"""Policies in the form of their papers, their ablations, and the strongest rival, for experiments alone.

Do not serve with them: each loses to a policy of this project. They are registered in the entry point group
``sloserve.policies_for_experiments``. The package imports lso and below. Baselines that those papers compare themselves
with are in the checkout's ``benchmarks/baselines``.
"""
