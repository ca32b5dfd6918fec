"""The page of the documents, as a reader would run it."""

import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
FILE = {"command": "create", "path": "/memories/fruit.txt", "file_text": "Ann likes pears."}


def claude(request: httpx2.Request) -> httpx2.Response:
    """Writes a file, then says so."""
    is_first = b"tool_result" not in request.content
    tool = {"type": "tool_use", "id": "t", "name": "memory", "input": FILE}
    block: dict[str, Any] = tool if is_first else {"type": "text", "text": "Noted."}
    kind = {"id": "m", "type": "message", "role": "assistant", "model": "claude"}
    usage = {"stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
    reason = "tool_use" if is_first else "end_turn"
    return httpx2.Response(200, json={**kind, **usage, "content": [block], "stop_reason": reason})


def test_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    answers = [AIMessage("Nice name."), AIMessage("Rex.")]
    transport = httpx2.MockTransport(claude)
    with Anthropic(api_key="none", http_client=httpx2.Client(transport=transport)) as client:
        names = {"model": GenericFakeChatModel(messages=iter(answers)), "client": client}
        for block in blocks:
            exec(compile(block, PAGE.name, "exec"), names)
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["dog My dog is called Rex.", "Noted."]
    assert said[-1] == "Ann likes pears."
