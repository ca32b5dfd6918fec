"""Claude's memory tool beside the package's own on a file system, and in the real tool runner."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic
from anthropic.lib.tools import BetaAbstractMemoryTool, ToolError
from anthropic.lib.tools._beta_builtin_memory_tool import BetaLocalFilesystemMemoryTool

from titans.integrations.claude import TitansMemoryTool
from titans.recall import TextMemory

FOOD, DEEP = "/memories/food.txt", "/memories/people/family/ann.md"
COMMANDS: list[dict[str, Any]] = [
    {"command": "view", "path": "/memories"},
    {"command": "create", "path": FOOD, "file_text": "Ann likes pears.\nBob likes apples.\n"},
    {"command": "create", "path": FOOD, "file_text": "again"},
    {"command": "create", "path": DEEP, "file_text": ""},
    {"command": "create", "path": "/memories/people/bob", "file_text": "x" * 1500},
    {"command": "create", "path": "/memories/.hidden", "file_text": "x"},
    {"command": "view", "path": "/memories"},
    {"command": "view", "path": "/memories/people"},
    {"command": "view", "path": FOOD},
    {"command": "view", "path": FOOD, "view_range": [2, -1]},
    {"command": "view", "path": FOOD, "view_range": [1, 1]},
    {"command": "view", "path": DEEP},
    {"command": "view", "path": "/memories/nothing"},
    {"command": "str_replace", "path": FOOD, "old_str": "pears", "new_str": "plums\nand figs"},
    {"command": "str_replace", "path": FOOD, "old_str": "likes", "new_str": "eats"},
    {"command": "str_replace", "path": FOOD, "old_str": "cherries", "new_str": ""},
    {"command": "str_replace", "path": "/memories/nothing", "old_str": "a", "new_str": "b"},
    {"command": "str_replace", "path": "/memories/people", "old_str": "a", "new_str": "b"},
    {"command": "insert", "path": FOOD, "insert_line": 0, "insert_text": "Food\n"},
    {"command": "insert", "path": FOOD, "insert_line": 4, "insert_text": "the end"},
    {"command": "insert", "path": FOOD, "insert_line": 9, "insert_text": "too far"},
    {"command": "insert", "path": DEEP, "insert_line": 0, "insert_text": "first"},
    {"command": "view", "path": FOOD},
    {"command": "view", "path": DEEP},
    {"command": "rename", "old_path": FOOD, "new_path": "/memories/lists/food.txt"},
    {"command": "rename", "old_path": FOOD, "new_path": "/memories/other"},
    {"command": "rename", "old_path": "/memories/people/bob", "new_path": DEEP},
    {"command": "rename", "old_path": "/memories/people", "new_path": "/memories/folk"},
    {"command": "view", "path": "/memories/folk/family/ann.md"},
    {"command": "delete", "path": "/memories/lists/food.txt"},
    {"command": "delete", "path": "/memories/lists/food.txt"},
    {"command": "delete", "path": "/memories/folk"},
    {"command": "delete", "path": "/memories"},
    {"command": "rename", "old_path": "/memories", "new_path": "/memories/x"},
]


def run(tool: BetaAbstractMemoryTool, command: dict[str, Any]) -> str:
    """What Claude reads, without the sizes of directories: a file system's are of another kind."""
    try:
        said = str(tool.call(command))
    except ToolError as error:
        return f"error: {error.content}"
    lines = said.splitlines()
    if said.startswith("Here're"):
        lines = [x.split("\t")[1] if x.endswith(("/", command["path"])) else x for x in lines[1:]]
    return "\n".join(lines)


def test_it_says_what_the_tool_of_the_package_says(tmp_path: Path, memory: TextMemory):
    theirs, ours = BetaLocalFilesystemMemoryTool(str(tmp_path / "files")), TitansMemoryTool(memory)
    assert ours.to_dict() == theirs.to_dict() == {"type": "memory_20250818", "name": "memory"}
    for command in COMMANDS:
        assert run(ours, command) == run(theirs, command), command


@pytest.mark.parametrize(
    "path",
    ["/memories/../etc/passwd", "/memories/a/../../b", "/memories/./a", "/memories//a", "/etc/a",
     "memories/a", "/memoriesx/a", "/memories/%2e%2e/a", "/memories/..\\a", "", "/", ".."],
)  # fmt: skip
def test_paths_that_lead_out_are_refused(memory: TextMemory, path: str):
    tool = TitansMemoryTool(memory)
    for command in (
        {"command": "view", "path": path},
        {"command": "create", "path": path, "file_text": "x"},
        {"command": "delete", "path": path},
        {"command": "rename", "old_path": path, "new_path": "/memories/a"},
        {"command": "rename", "old_path": "/memories/a", "new_path": path},
    ):
        assert run(tool, command).startswith(("error: Path must", "error: Path /mem")), command
    assert memory.records() == []


def test_only_files_of_the_tool_are_touched(memory: TextMemory):
    memory.remember("said in a chat", id="0:/memories/chat.txt")
    tool = TitansMemoryTool(memory)
    tool.call({"command": "create", "path": FOOD, "file_text": "Ann likes pears."})
    assert "chat" not in run(tool, {"command": "view", "path": "/memories"})
    (found,) = memory.recall("Who likes pears?", 1)
    assert found.text == f"{FOOD}\nAnn likes pears."
    assert tool.clear_all_memory() == "All memory cleared"
    assert [r.text for r in memory.records()] == ["said in a chat"]
    said = run(tool, {"command": "create", "path": FOOD, "file_text": "x" * 2_000_001})
    assert said.startswith("error: text has 2,000,0")
    run(tool, {"command": "create", "path": "/memories/a", "file_text": "x"})
    for command in (
        {"command": "create", "path": "/memories/a/b", "file_text": "x"},
        {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/a/b"},
    ):
        assert run(tool, command).startswith("error: ")


def test_the_tool_runner_of_the_package_uses_it(memory: TextMemory):
    sent: list[dict[str, Any]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(json.loads(request.content))
        uses = [
            {"command": "view", "path": "/memories"},
            {"command": "create", "path": FOOD, "file_text": "Ann likes pears."},
            {"command": "delete", "path": "/memories/../../etc"},
        ]
        step = len(sent) - 1
        block: dict[str, Any] = {"type": "text", "text": "Done."}
        if step < len(uses):
            block = {"type": "tool_use", "id": f"t{step}", "name": "memory", "input": uses[step]}
        kind = {"id": "m", "type": "message", "role": "assistant", "model": "claude"}
        rest = {"stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
        reason = "end_turn" if block["type"] == "text" else "tool_use"
        return httpx2.Response(
            200, json={**kind, "content": [block], "stop_reason": reason, **rest}
        )

    with Anthropic(
        api_key="none", http_client=httpx2.Client(transport=httpx2.MockTransport(answer))
    ) as client:
        runner = client.beta.messages.tool_runner(
            model="claude-sonnet-4-5",
            max_tokens=100,
            messages=[{"role": "user", "content": "Ann likes pears."}],
            tools=[TitansMemoryTool(memory)],
        )
        final = runner.until_done()
    assert final.content[0].text == "Done."  # type: ignore[union-attr]
    assert sent[0]["tools"] == [{"type": "memory_20250818", "name": "memory"}]
    results = [message["messages"][-1]["content"][0] for message in sent[1:]]
    assert [bool(result.get("is_error")) for result in results] == [False, False, True]
    assert "escape" in str(results[2]["content"])
    assert memory.recall("pears", 1)[0].text.endswith("Ann likes pears.")
