"""Points Hugging Face's Auto classes at the package `titans-neural-memory`."""

from titans.models import TitansConfig, TitansForCausalLM, TitansModel

__all__ = ["TitansConfig", "TitansForCausalLM", "TitansModel"]
