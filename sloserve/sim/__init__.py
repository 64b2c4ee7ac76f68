"""Simulations: experiments as data, run through the virtual engine.

The package imports workloads, report and vllm_plugin's virtual engine. A package adds an experiment as a row of the
mapping that it registers, see ``experiments.py``.
"""
