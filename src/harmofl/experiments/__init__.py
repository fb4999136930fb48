"""Grids of runs: methods × variations × seeds, described by one TOML file for each table and figure."""
