"""What trained models and their federations look like from inside."""
