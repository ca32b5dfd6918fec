"""docs/notation.md is the table of names: it has every setting of the memory, and no other."""

import dataclasses
import re
from pathlib import Path

import yaml

from titans.layers.memory_config import MemoryConfig

TABLE = Path(__file__).parents[1] / "docs" / "notation.md"
BY_CONTEXT = ("num_heads", "head_dim", "value_dim", "init", "step_init", "step_max")
"""Settings whose default, None, stands for something that the table says in words."""


def test_the_table_has_every_setting_with_its_default() -> None:
    section = TABLE.read_text().split("## Settings of the memory")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE)
    fields = {field.name: field.default for field in dataclasses.fields(MemoryConfig)}
    assert [name for name, _ in rows] == list(fields)
    for name, said in rows:
        if name in BY_CONTEXT:
            assert fields[name] is None
        else:
            assert yaml.safe_load(said) == fields[name], name
