"""Bounded model checking of the whole protocol: models, properties, and the search over them."""
