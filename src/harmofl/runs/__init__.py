"""A run on disk: its folder, records, checkpoints and model, while it is written and when it is finished."""
