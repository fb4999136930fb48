"""A trained model as one folder."""
