"""Dispatchers by name: what a fleet is compared with. Add one: a file, and a line in ``by_name.py``."""
