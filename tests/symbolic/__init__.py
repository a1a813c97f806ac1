"""Proofs over all inputs; see README.md."""
