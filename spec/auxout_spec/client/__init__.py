"""The client of the rows: what happens to them between an engine's answer and a trainer's tensor.

A conversation is a list of calls; each call sends a prompt and gets tokens and rows back. A row belongs to a position
of a token sequence, and the last token of a call has none, since it was never forwarded. ``decode`` reads what an
engine returned, ``merge`` joins the calls of a conversation by position, ``layout`` puts rows where a trainer wants
them. ``conversation`` plays all of it from JSON.

Every function is pure: it returns a new value or a ``Refused``, and never drops, pads, cuts or widens what it was not
asked to.
"""
