"""What a method is; `catalogue.py` lists them all."""
