"""The agent of a host: it owns the devices, forms instances of them, and is the only door to their engines."""
