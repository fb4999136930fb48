"""Data as it lies in folders, one file per layout; each offers `list_samples(folder) -> Listing` and opens no image."""
