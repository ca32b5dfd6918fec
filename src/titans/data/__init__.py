"""From text, datasets and the generators of `titans.tasks` to batches of tokens. Nothing here
knows a model."""
