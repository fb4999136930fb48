"""NVIDIA FLARE as an engine: its certificates, its registration and its messages, without its jobs."""
