"""Swap space: which preempted requests keep their KV in host memory, and how it is copied there and back."""
