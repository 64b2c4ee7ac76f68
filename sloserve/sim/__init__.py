"""Simulations: experiments as data, run through the virtual engine.

Imports workloads, report, vllm_plugin's virtual engine. Add an experiment as a row of ``experiments.py``.
"""
