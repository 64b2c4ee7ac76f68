"""Dispatchers by name, with which a fleet is compared. To add one, add a file, and a line in ``by_name.py``."""
