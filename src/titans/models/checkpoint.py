"""Load a model and its tokenizer from a checkpoint folder, or from the folder of a run.

No code of the folder is ever run: the model is this package's own, and tokenizers that bring Python
code are refused.
"""

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from titans import shipped
from titans.errors import CheckpointError, TitansError
from titans.models.config import TitansConfig
from titans.models.lm import TitansForCausalLM

CONFIG_FILE = "config.json"
NEWEST = (Path("checkpoints/last"), Path("last"))
"""Where a run, and its folder of checkpoints, keep the newest one."""
STAGE = "stage-"
"""What the folders of a training's stages are called; a number follows."""


def load(folder: str | Path) -> tuple[TitansForCausalLM, PreTrainedTokenizerBase]:
    """The model, ready to read (in `eval` mode), and its tokenizer."""
    place = find_checkpoint(folder)
    return load_model(place).eval(), load_tokenizer(place)


def find_checkpoint(folder: str | Path) -> Path:
    """The folder itself if it is a checkpoint; of a run, its newest one; or a shipped one."""
    folder = shipped.find_checkpoint(folder)
    runs = (folder, *reversed(stage_folders(folder)))
    for place in (folder, *(run / newest for run in runs for newest in NEWEST)):
        if (place / CONFIG_FILE).is_file():
            return place
    raise CheckpointError(
        f"{folder} is no checkpoint: it has no {CONFIG_FILE}. Give the folder that `titans train` "
        "or save_pretrained wrote, such as runs/mac"
    )


def stage_folders(folder: Path) -> list[Path]:
    """The folders of a training's stages, first one first."""
    found = [path for path in folder.glob(f"{STAGE}*") if path.name[len(STAGE) :].isdecimal()]
    return sorted(found, key=lambda path: int(path.name[len(STAGE) :]))


def load_config(folder: Path) -> TitansConfig:
    """The configuration of the model in a checkpoint."""
    try:
        return TitansConfig.from_pretrained(folder)
    except TitansError:
        raise
    except Exception as error:  # whatever a damaged file leads `transformers` to
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise CheckpointError(
            f"{folder / CONFIG_FILE} is no configuration of a model ({reason}): copy the "
            "checkpoint again"
        ) from error


def load_model(folder: Path, config: TitansConfig | None = None) -> TitansForCausalLM:
    """The model in a checkpoint, with its own configuration unless another is given."""
    return TitansForCausalLM.from_pretrained(folder, config=config or load_config(folder))


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in a checkpoint."""
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # `tokenizers` raises plain `Exception`s
        has_file = (folder / "tokenizer.json").is_file()
        wrong = "tokenizer.json is no tokenizer" if has_file else "no tokenizer beside the model"
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise CheckpointError(
            f"{folder}: {wrong} ({reason}); save one there with tokenizer.save_pretrained"
        ) from error
