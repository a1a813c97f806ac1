"""vLLM's own scheduler drives the connectors; see README.md."""
