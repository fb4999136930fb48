"""A federation over a real network: what each party holds and does, and one thin adapter per engine."""
