"""A tree of tensors: what every state and trace is, and what is done to all its tensors alike."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast, get_origin

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from titans.errors import StateError
from titans.files import read_tensors, write_tensors

Tree = TypeVar("Tree")
Node = TypeVar("Node", bound="TensorTree")


def map_tree(fn: Callable[..., Tensor], tree: Tree, *others: Tree) -> Tree:
    """Apply `fn` to every tensor of a tree, with those at the same places of the others."""
    kind, several = cast(Any, type(tree)), cast(Any, (tree, *others))
    if isinstance(tree, Tensor):
        return fn(*several)  # type: ignore[return-value]
    if isinstance(tree, TensorTree):
        return tree.map(fn, *several[1:])
    if isinstance(tree, tuple | list):
        parts = [map_tree(fn, *same) for same in zip(*several, strict=True)]
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    assert tree is None, f"no part of a tree: {tree!r}"
    return tree


def where_rows(rows: Bool[Tensor, " batch"], yes: Tree, no: Tree) -> Tree:
    """Of every tensor in two trees, row by row: `yes` if `rows` is True and else `no`."""

    def choose(yes: Tensor, no: Tensor) -> Tensor:
        return torch.where(rows.view(-1, *[1] * (yes.ndim - 1)), yes, no)

    return map_tree(choose, yes, no)


class TensorTree:
    """A frozen dataclass of tensors, tuples of them and other trees; None where a part is missing.

    It is a value: every method returns a new one. A tensor is saved under its path in the tree.
    """

    FORMAT: ClassVar[str]
    """What a file of it calls itself."""
    PARTS: ClassVar[Mapping[str, type[Any]]] = {}
    """Fields that are trees or named tuples, with their class."""
    SAVED: ClassVar[Mapping[str, str]] = {}
    """Paths that are saved under another name."""

    def map(self: Node, fn: Callable[..., Tensor], *others: Node) -> Node:
        """Apply `fn` to every tensor, with those at the same places of the others."""
        trees = (self, *others)
        changed = {
            name: map_tree(fn, *(getattr(tree, name) for tree in trees))
            for name in _field_names(self)
        }
        return type(self)(**changed)

    def detach(self: Node) -> Node:
        """Cut the autograd graph: the next call starts a new one (truncated BPTT)."""
        return self.map(torch.Tensor.detach)

    def clone(self: Node) -> Node:
        """A copy that shares no storage."""
        return self.map(torch.Tensor.clone)

    def to(
        self: Node, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Node:
        """Move to a device and, for the floating-point tensors, a type."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)

        return self.map(move)

    def select(self: Node, index: Int[Tensor, " rows"] | Sequence[int]) -> Node:
        """The rows at `index`, in that order; rows may repeat (beam search, forking)."""
        rows = torch.as_tensor(index)

        def take(tensor: Tensor) -> Tensor:
            return tensor.index_select(0, rows.to(tensor.device))

        return self.map(take)

    def replace(self: Node, **changes: object) -> Node:
        """A copy with some fields changed."""
        return cast(Node, replace(cast(Any, self), **changes))

    @property
    def num_bytes(self) -> int:
        """Size of all tensors, as saved: constant over the life of a memory."""
        return sum(t.numel() * t.element_size() for t in self.named_tensors().values())

    def named_tensors(self) -> dict[str, Tensor]:
        """Every tensor under a flat name, for saving and comparing."""
        found = (_named(getattr(self, name), name) for name in _field_names(self))
        return {self.SAVED.get(name, name): tensor for part in found for name, tensor in part}

    @classmethod
    def from_named_tensors(cls: type[Node], named: Mapping[str, Tensor]) -> Node:
        """The inverse of `named_tensors`."""
        paths = {saved: path for path, saved in cls.SAVED.items()}
        groups: dict[str, dict[str, Tensor]] = {}
        for name, tensor in named.items():
            part, _, rest = paths.get(name, name).partition(".")
            groups.setdefault(part, {})[rest] = tensor
        known = {field.name: field for field in fields(cast(Any, cls))}
        if unknown := set(groups) - set(known):
            raise StateError(f"not a {cls.__name__}: unknown part {min(unknown)!r}")
        parts: dict[str, object] = {}
        for name, field in known.items():
            if name in groups:
                parts[name] = cls._part(name, groups[name])
            elif get_origin(field.type) is tuple:
                parts[name] = ()
            elif field.default is MISSING:
                raise StateError(f"not a {cls.__name__}: {cls.SAVED.get(name, name)} is missing")
        return cls(**parts)

    @classmethod
    def _part(cls, name: str, group: Mapping[str, Tensor]) -> object:
        kind = cls.PARTS.get(name)
        if kind is not None and issubclass(kind, TensorTree):
            return kind.from_named_tensors(group)
        names = [""] if "" in group else [str(number) for number in range(len(group))]
        names = list(cast(Any, kind)._fields) if kind is not None else names
        if set(names) != set(group):
            raise StateError(f"not a {cls.__name__}: damaged part {name!r} ({', '.join(group)})")
        found = [group[each] for each in names]
        return found[0] if names == [""] else tuple(found) if kind is None else kind(*found)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file with a format version."""
        write_tensors(path, self.named_tensors(), self.FORMAT, 1)

    @classmethod
    def load(cls: type[Node], path: str | Path) -> Node:
        """Read what `save` wrote."""
        named = read_tensors(path, cls.FORMAT, 1)
        try:
            return cls.from_named_tensors(named)
        except StateError as error:
            raise StateError(f"{path}: {error}") from error


def _field_names(tree: TensorTree) -> list[str]:
    return [field.name for field in fields(cast(Any, tree))]


def _named(part: object, path: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a part with their paths."""
    if isinstance(part, Tensor):
        yield path, part
    elif isinstance(part, TensorTree):
        yield from ((f"{path}.{name}", t) for name, t in part.named_tensors().items())
    elif isinstance(part, tuple):
        parts = cast("tuple[object, ...]", part)
        for name, inner in zip(getattr(parts, "_fields", range(len(parts))), parts, strict=True):
            yield from _named(inner, f"{path}.{name}")
