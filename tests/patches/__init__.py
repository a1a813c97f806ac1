"""A corpus of patches to released vLLM connectors, each with what verifying it must say."""
