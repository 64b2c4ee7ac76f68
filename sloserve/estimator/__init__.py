"""Predictions about the engine: how long a step takes, how many tokens a request has left, on which hardware.

A profile (``profile.py``) is a YAML file that describes one model on one machine; its latency form (``latency.py``)
turns the load of a step into seconds. Both are pure: they read no clock and draw no random numbers. Output lengths are
distributions (``length_rest.py``); ``length_choice.py`` makes each predictor by its name.
"""
