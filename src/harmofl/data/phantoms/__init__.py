"""Synthetic images with truth by construction: what every task runs on without data."""
