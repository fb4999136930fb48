"""A federation on Flower: its SuperLink and SuperNodes carry bytes; what they mean is decided here, never by them."""
