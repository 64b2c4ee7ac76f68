"""The agent of a host: it owns the devices, forms instances of them, and has the only endpoint to their engines."""
