"""Files of other programs as lines that `import_records` reads.

What a file is, is seen from its content: exports of ChatGPT, Claude and mem0, OpenAI messages, the
`memory.jsonl` of MCP's reference server, CSV; any other text is taken paragraph by paragraph.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from titans.errors import DataError
from titans.files import parse_json
from titans.recall.checks import FIELDS, SAID

KNOWN = (
    "lines with `text` (titans export), OpenAI messages, exports of ChatGPT, Claude or mem0, the "
    "memory.jsonl of MCP's reference server, CSV with a column text, or plain text"
)
NAMES = {"human": "user"}
"""Speakers that other programs call otherwise."""


def as_lines(content: str, name: str) -> list[str]:
    """The lines to import of a file's content.

    Args:
        name: of the file, for messages and for its ending.
    """
    ending = PurePath(name).suffix.lower()
    if ending == ".csv":
        return _dump(_from_csv(content, name))
    if not content.lstrip().startswith(("{", "[")) or ending in (".md", ".txt"):
        return _dump(_from_text(content, name))
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        # Only by line feed: texts may hold other characters that count as line ends.
        lines = content.split("\n")
        first = parse_json(next(line for line in lines if line.strip()), "line 1")
        if isinstance(first, dict) and ({"text", "persistent"} & set(first)):
            return lines
        value = [parse_json(s, f"line {n}") for n, s in enumerate(lines, 1) if s.strip()]
    if isinstance(value, dict) and "text" in value:
        return content.split("\n")
    return _dump(_from_json(value, name))


def _from_json(value: Any, name: str) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and isinstance(value.get("results"), list):
        value = value["results"]
    if isinstance(value, dict):
        value = [value]
    for number, item in enumerate(value, 1):
        try:
            yield from _of_item(item)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise DataError(
                f"{name}: entry {number} is of no known kind ({type(error).__name__}: {error}); "
                f"known: {KNOWN}"
            ) from error


def _of_item(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The records of one entry: a conversation, a message, a memory, an entity."""
    if "mapping" in item:
        yield from _chatgpt(item)
    elif "chat_messages" in item:
        for message in item["chat_messages"]:
            said = message.get("text") or _parts(message.get("content"))
            yield _message(message["sender"], said, message["created_at"], message["uuid"])
    elif "messages" in item:
        for message in item["messages"]:
            yield from _of_item(message)
    elif "role" in item:
        if item["role"] in ("user", "assistant"):
            yield _message(item["role"], _parts(item["content"]), None, None)
    elif "memory" in item:
        record = {"text": item["memory"], "id": item.get("id"), "time": item.get("created_at")}
        yield {**record, "speaker": item.get("user_id"), "metadata": item.get("metadata")}
    elif item.get("type") == "entity":
        for observation in item["observations"]:
            metadata = {"entity": item["name"], "kind": item["entityType"]}
            yield {"text": f"{item['name']}: {observation}", "metadata": metadata}
    elif item.get("type") == "relation":
        yield {"text": f"{item['from']} {item['relationType'].replace('_', ' ')} {item['to']}"}
    elif "text" in item:
        yield {field: item.get(field) for field in FIELDS}
    else:
        raise KeyError("text")


def _chatgpt(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The branch of a conversation that its user saw last, from its beginning."""
    nodes, place = item["mapping"], item["current_node"]
    branch: list[dict[str, Any]] = []
    while place is not None and len(branch) < len(nodes):
        branch.append(nodes[place])
        place = nodes[place].get("parent")
    for node in reversed(branch):
        message = node.get("message")
        if not message or message["author"]["role"] not in ("user", "assistant"):
            continue
        time = message.get("create_time")
        when = None if time is None else datetime.fromtimestamp(time, UTC).isoformat()
        said = _parts((message.get("content") or {}).get("parts"))
        yield _message(message["author"]["role"], said, when, message["id"])


def _message(who: str, text: str, time: str | None, id: str | None) -> dict[str, Any]:
    return {"text": text, "speaker": NAMES.get(who, who), "time": time, "id": id}


def _parts(content: Any) -> str:
    """The text of a message's content: a text, or parts of which some are texts."""
    if not isinstance(content, list):
        return content or ""
    texts = [part if isinstance(part, str) else part.get("text") for part in content]
    return "\n".join(text for text in texts if text)


def _from_csv(content: str, name: str) -> Iterator[dict[str, Any]]:
    rows = csv.DictReader(io.StringIO(content))
    if "text" not in (rows.fieldnames or []):
        raise DataError(f"{name} has no column text; its columns: {rows.fieldnames}")
    for row in rows:
        more = {key: value for key, value in row.items() if key and key not in SAID and value}
        known = {field: row.get(field) or None for field in SAID if field != "metadata"}
        yield {**known, "metadata": more or None}


def _from_text(content: str, name: str) -> Iterator[dict[str, Any]]:
    for paragraph in re.split(r"\n[ \t]*\n", content.replace("\r\n", "\n")):
        yield {"text": paragraph.strip(), "metadata": {"source": PurePath(name).name}}


def _dump(records: Iterable[dict[str, Any]]) -> list[str]:
    """Lines of records, those without a text left out."""
    kept = ({k: v for k, v in record.items() if v is not None} for record in records)
    return [json.dumps(r, ensure_ascii=False) for r in kept if str(r.get("text", "")).strip()]
