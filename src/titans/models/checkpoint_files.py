"""What a checkpoint folder holds beside Hugging Face's own files, and what is checked on loading.

With `modeling_titans.py`, `AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`
finds the model without importing this package first. `checksums.json` tells a damaged file.
"""

import json
from pathlib import Path
from typing import Any

from torch import nn

from titans.errors import CheckpointError
from titans.files import file_digest, read_json, write_text

AUTO_MAP = {
    "AutoConfig": "modeling_titans.TitansConfig",
    "AutoModel": "modeling_titans.TitansModel",
    "AutoModelForCausalLM": "modeling_titans.TitansForCausalLM",
}
REMOTE_CODE_FILE = "modeling_titans.py"
REMOTE_CODE = '''"""Points Hugging Face's Auto classes at the package `titans-neural-memory`."""

from titans.models import TitansConfig, TitansForCausalLM, TitansModel

__all__ = ["TitansConfig", "TitansForCausalLM", "TitansModel"]
'''
CHECKSUM_FILE = "checksums.json"
ALIGNMENT = 64
"""Bytes; what torch gives to tensors that it allocates."""


def write_extras(folder: Path) -> None:
    """Add the remote-code file and the checksums to a folder that `save_pretrained` filled."""
    write_text(folder / REMOTE_CODE_FILE, REMOTE_CODE)
    sums = {path.name: file_digest(path) for path in sorted(folder.glob("*.safetensors"))}
    write_text(folder / CHECKSUM_FILE, json.dumps(sums, indent=2) + "\n")


def verify_checksums(folder: Path) -> None:
    """Raise `CheckpointError` if a weight file is not the one that was saved."""
    recorded = folder / CHECKSUM_FILE
    if not recorded.is_file():
        return
    sums = read_json(recorded)
    if not isinstance(sums, dict):
        raise CheckpointError(f"{recorded}: damaged; copy the whole folder again")
    for name, wanted in sums.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{folder}: {name} is missing; copy the whole folder again")
        if file_digest(path) != wanted:
            raise CheckpointError(
                f"{path}: not the file that was saved (truncated or changed); copy it again, or "
                f"delete {CHECKSUM_FILE} if you changed it on purpose"
            )


def check_loading(folder: object, variant: str, info: dict[str, Any]) -> None:
    """Raise `CheckpointError` unless every weight was found and every one found was used."""
    problems = []
    for key, words in (("missing_keys", "lacks"), ("unexpected_keys", "has unknown")):
        names = sorted(map(str, info.get(key) or ()))
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            problems.append(f"it {words} {', '.join(names[:3])}{more}")
    mismatched: list[tuple[str, Any, Any]] = sorted(info.get("mismatched_keys") or [])
    for name, saved, wanted in mismatched[:3]:
        problems.append(f"{name} has shape {tuple(saved)}, not {tuple(wanted)}")
    if problems:
        raise CheckpointError(
            f"{folder}: the weights do not belong to a {variant!r} model of this configuration: "
            + "; ".join(problems)
        )


def align_parameters(model: nn.Module) -> None:
    """Move weights that lie askew in a mapped file to memory of their own.

    Matrix products round differently, and run slower, on memory that is not aligned: without this
    a loaded model would differ from the saved one in the last bit.
    """
    for parameter in model.parameters():
        if parameter.device.type == "cpu" and parameter.data_ptr() % ALIGNMENT:
            parameter.data = parameter.data.clone()
