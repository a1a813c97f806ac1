"""vLLM's real engine on the CPU brings rows to a training step; see README.md one folder up."""
