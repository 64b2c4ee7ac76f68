"""What sloserve adds to vLLM's HTTP server: reading SLOs, reporting outcomes, and the admin routes."""
