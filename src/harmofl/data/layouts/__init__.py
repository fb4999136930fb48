"""Data as it lies in folders, one file per layout; each offers a `Layout` and opens no image."""
