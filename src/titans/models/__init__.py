"""Language models with a neural memory: LMM, MAC, MAG, MAL, and their baselines.

Importing this registers them with Hugging Face's `AutoConfig` and `AutoModelForCausalLM`.
"""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from titans.models.cache import TitansCache as TitansCache
from titans.models.config import TitansConfig as TitansConfig
from titans.models.lm import TitansForCausalLM as TitansForCausalLM
from titans.models.lm import TitansModel as TitansModel
from titans.models.lm import TitansOutput as TitansOutput

AutoConfig.register("titans", TitansConfig, exist_ok=True)
AutoModel.register(TitansConfig, TitansModel, exist_ok=True)
AutoModelForCausalLM.register(TitansConfig, TitansForCausalLM, exist_ok=True)
