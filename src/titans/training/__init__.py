"""From a configuration to a checkpoint: `titans train`. Read `trainer.py` first."""
