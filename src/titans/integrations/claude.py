"""Claude's memory tool (`memory_20250818`) on the text memory: files that are found by `recall`.

tool = TitansMemoryTool(TextMemory("memory.db", scope="ann"))
client.beta.messages.tool_runner(model=..., messages=..., max_tokens=1024, tools=[tool])
"""

import re
from typing import Any

from anthropic.lib.tools import BetaAbstractMemoryTool, ToolError
from anthropic.types.beta import (
    BetaMemoryTool20250818CreateCommand,
    BetaMemoryTool20250818DeleteCommand,
    BetaMemoryTool20250818InsertCommand,
    BetaMemoryTool20250818RenameCommand,
    BetaMemoryTool20250818StrReplaceCommand,
    BetaMemoryTool20250818ViewCommand,
)

from titans.errors import DataError
from titans.integrations.documents import Documents
from titans.recall import TextMemory

ROOT = "/memories"
DEPTH = 2
"""Levels that a directory shows."""


class TitansMemoryTool(BetaAbstractMemoryTool):
    """Files under /memories, each a record; directories are the beginnings of their names.

    Messages are those of the package's own tool on a file system, which Claude knows.

    Args:
        memory: whose files. `recall` finds them too, with the path as their first line.
    """

    def __init__(self, memory: TextMemory, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._files = Documents(memory)

    def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        """A file with numbered lines, or what is in a directory."""
        path = checked_path(command.path)
        found = self._files.get(path)
        if found is None:
            return self._directory(path)
        lines, first = found.value.split("\n"), 1
        if command.view_range and len(command.view_range) == 2:
            first = max(1, command.view_range[0])
            last = len(lines) if command.view_range[1] == -1 else command.view_range[1]
            lines = lines[first - 1 : last]
        return f"Here's the content of {path} with line numbers:\n{_numbered(lines, first)}"

    def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        """A new file."""
        path = checked_path(command.path)
        if path == ROOT or self._files.get(path) is not None or self._under(path):
            raise ToolError(f"File {path} already exists")
        self._refuse_files_above(path)
        self._write(path, command.file_text)
        return f"File created successfully at: {path}"

    def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        """Replace a text that is in a file once."""
        path, content = self._read(command.path)
        old = command.old_str
        places = [m.start() for m in re.finditer(f"(?={re.escape(old)})", content)] if old else []
        lines = [content.count("\n", 0, place) + 1 for place in places]
        if not places:
            raise ToolError(
                f"No replacement was performed, old_str `{old}` did not appear verbatim in {path}."
            )
        if len(places) > 1:
            raise ToolError(
                f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines: "
                f"{', '.join(map(str, lines))}. Please ensure it is unique"
            )
        content = content.replace(old, command.new_str)
        self._write(path, content)
        first = max(1, lines[0] - 2)
        shown = _numbered(content.split("\n")[first - 1 : lines[0] + 2], first)
        return (
            "The memory file has been edited. Here is the snippet showing the change (with line "
            f"numbers):\n{shown}"
        )

    def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        """Insert lines after a line; 0 is the beginning."""
        path, content = self._read(command.path)
        lines = content.removesuffix("\n").split("\n") if content else []
        if not 0 <= command.insert_line <= len(lines):
            raise ToolError(
                f"Invalid `insert_line` parameter: {command.insert_line}. It should be within the "
                f"range [0, {len(lines)}]."
            )
        lines.insert(command.insert_line, command.insert_text.rstrip("\n"))
        self._write(path, "\n".join(lines).removesuffix("\n") + "\n")
        return f"The file {path} has been edited."

    def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        """Forget a file, or all files of a directory, permanently."""
        path = checked_path(command.path)
        if path == ROOT:
            raise ToolError(f"Cannot delete the {ROOT} directory itself")
        paths = [path] if self._files.get(path) is not None else self._under(path)
        if not paths:
            raise ToolError(f"The path {path} does not exist")
        for name in paths:
            self._files.delete(name)
        return f"Successfully deleted {path}"

    def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        """Move a file or a directory."""
        old, new = checked_path(command.old_path), checked_path(command.new_path)
        if old == ROOT:
            raise ToolError(f"Cannot rename the {ROOT} directory itself")
        if new == ROOT or self._files.get(new) is not None or self._under(new):
            raise ToolError(f"The destination {new} already exists")
        paths = [old] if self._files.get(old) is not None else self._under(old)
        if not paths:
            raise ToolError(f"The path {old} does not exist")
        if new.startswith(old + "/"):
            raise ToolError(f"Cannot move {old} into itself")
        self._refuse_files_above(new)
        for path in paths:
            self._write(new + path.removeprefix(old), self._read(path)[1])
            self._files.delete(path)
        return f"Successfully renamed {old} to {new}"

    def clear_all_memory(self) -> str:
        """Forget all files; other records of the memory stay."""
        for path in self._under(ROOT):
            self._files.delete(path)
        return "All memory cleared"

    def _read(self, given: str) -> tuple[str, str]:
        """A file's path and content."""
        path = checked_path(given)
        found = self._files.get(path)
        if found is not None:
            return path, found.value
        if path == ROOT or self._under(path):
            raise ToolError(f"The path {path} is not a file.")
        raise ToolError(f"The path {path} does not exist. Please provide a valid path.")

    def _write(self, path: str, content: str) -> None:
        try:
            self._files.put(path, f"{path}\n{content}", content)
        except DataError as error:
            raise ToolError(str(error)) from error

    def _under(self, directory: str) -> list[str]:
        """The files of a directory, sorted."""
        return sorted(d.key for d in self._files.all() if d.key.startswith(directory + "/"))

    def _refuse_files_above(self, path: str) -> None:
        parts = path.split("/")
        for end in range(3, len(parts)):
            above = "/".join(parts[:end])
            if self._files.get(above) is not None:
                raise ToolError(f"{above} is a file, not a directory")

    def _directory(self, path: str) -> str:
        sizes: dict[str, int] = {}
        for document in self._files.all():
            inside = document.key.removeprefix(path + "/").split("/")
            if document.key.startswith(path + "/") and not any(p[0] == "." for p in inside):
                size = len(document.value.encode())
                for depth in range(min(DEPTH, len(inside) - 1) + 1):
                    name = "/".join([path, *inside[:depth]]) + "/" * (0 < depth < len(inside))
                    sizes[name] = sizes.get(name, 0) + size
                if len(inside) <= DEPTH:
                    sizes[document.key] = size
        if not sizes and path != ROOT:
            raise ToolError(f"The path {path} does not exist. Please provide a valid path.")
        listed = sorted({path: 0, **sizes}.items(), key=lambda pair: pair[0].split("/"))
        lines = [f"{_size(size)}\t{name}" for name, size in listed]
        head = f"Here're the files and directories up to {DEPTH} levels deep in {path}"
        return "\n".join([f"{head}, excluding hidden items:", *lines])


def checked_path(path: str) -> str:
    """A path under /memories in its one form; everything else is refused."""
    parts = path.rstrip("/").split("/")
    if parts[:2] != ["", ROOT[1:]]:
        raise ToolError(f"Path must start with {ROOT}, got: {path}")
    if any(part in ("", ".", "..") or "\\" in part or "%" in part for part in parts[2:]):
        raise ToolError(
            f"Path {path} would escape {ROOT} directory: use plain names, separated by single /"
        )
    return "/".join(parts)


def _numbered(lines: list[str], first: int) -> str:
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines, first))


def _size(count: int) -> str:
    """Bytes as people read them."""
    unit = 0
    size = float(count)
    while size >= 1024 and unit < 3:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f}{'BKMG'[unit]}" if size == int(size) else f"{size:.1f}{'BKMG'[unit]}"
