"""Everything that harmofl uses of Flower beyond its public interface, in one place.

Flower would start a process of its own per message and per run and load submitted code in it. Here the long-living
processes of harmofl take the places of those processes: they acquire Flower's tasks through the same interface as
Flower's own executor, and ignore the code that comes along. pyproject.toml pins the version, and a test names what is
missing if another one lacks it.
"""
