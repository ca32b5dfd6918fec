"""From text, datasets and synthetic tasks to batches of tokens. Nothing here knows a model."""
