"""EconoServe, which fills compute and KV cache at once, and the schedulers its paper compares it with."""
