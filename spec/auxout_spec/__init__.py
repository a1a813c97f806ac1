"""The auxiliary-output protocol as an executable specification.

Start with ``scheduler`` (the scheduler connector's four calls) and ``clauses`` (every rule with its id).
``engine`` is the environment: what an inference engine may do. ``scenario`` is the one file format.
Standard library only; pure functions over immutable values.
"""
