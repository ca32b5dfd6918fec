"""Files of other programs become records; the same file twice changes nothing."""

import json
from pathlib import Path

import pytest

from titans.errors import DataError
from titans.recall import TextMemory, import_records
from titans.recall.importers import as_lines

CHATGPT = [
    {
        "title": "dogs",
        "current_node": "c",
        "mapping": {
            "r": {"message": None, "parent": None},
            "a": {
                "parent": "r",
                "message": {
                    "id": "m1",
                    "author": {"role": "user"},
                    "create_time": 1717156800.0,
                    "content": {"content_type": "text", "parts": ["My dog is called Rex."]},
                },
            },
            "b": {
                "parent": "a",
                "message": {
                    "id": "m2",
                    "author": {"role": "assistant"},
                    "create_time": None,
                    "content": {"parts": ["An answer that was thrown away."]},
                },
            },
            "c": {
                "parent": "a",
                "message": {
                    "id": "m3",
                    "author": {"role": "assistant"},
                    "create_time": None,
                    "content": {"parts": [{"asset": "x"}, "Nice."]},
                },
            },
        },
    }
]
CLAUDE = [
    {
        "uuid": "u",
        "name": "dogs",
        "chat_messages": [
            {
                "uuid": "1",
                "text": "Hello.",
                "sender": "human",
                "created_at": "2024-05-31T14:30:00Z",
            },
            {
                "uuid": "2",
                "text": "",
                "content": [{"type": "text", "text": "Hi."}],
                "sender": "assistant",
                "created_at": "2024-05-31T14:31:00Z",
            },
        ],
    }
]
MEM0 = {"results": [{"id": "x", "memory": "Likes tea", "user_id": "ann", "metadata": None}]}
MCP = [
    {"type": "entity", "name": "Ann", "entityType": "person", "observations": ["likes tea"]},
    {"type": "relation", "from": "Ann", "to": "Rex", "relationType": "owner_of"},
]
OPENAI = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": [{"type": "text", "text": "Hello."}]},
    {"messages": [{"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Hello."}]},
]


def jsonl(values: list) -> str:
    return "\n".join(map(json.dumps, values)) + "\n"


@pytest.mark.parametrize(
    "name, content, texts, speakers",
    [
        ("c.json", json.dumps(CHATGPT), ["My dog is called Rex.", "Nice."], ["user", "assistant"]),
        ("c.json", json.dumps(CLAUDE), ["Hello.", "Hi."], ["user", "assistant"]),
        ("m.json", json.dumps(MEM0), ["Likes tea"], ["ann"]),
        ("memory.jsonl", jsonl(MCP), ["Ann: likes tea", "Ann owner of Rex"], [None, None]),
        ("o.jsonl", jsonl(OPENAI), ["Hello.", "Hi.", "Hello."], ["user", "assistant", "user"]),
        ("t.csv", 'text,speaker,n\n"a, b",Ann,1\n"c\nd",,\n', ["a, b", "c\nd"], ["Ann", None]),
        (
            "b.md",
            "# One\n\nA long\nline.\n \n\n\nEnd.\n",
            ["# One", "A long\nline.", "End."],
            [None] * 3,
        ),
        (
            "-",
            '{"text": "x\u2028y"}\n{"text": "z", "speaker": "A"}\n',
            ["x\u2028y", "z"],
            [None, "A"],
        ),
        ("-", '{"text": "alone"}', ["alone"], [None]),
    ],
)
def test_a_file_is_read_once(
    memory: TextMemory, name: str, content: str, texts: list[str], speakers: list[str | None] | None
):
    assert import_records(memory, as_lines(content, name)) == len(texts)
    found = memory.records()
    assert [r.text for r in found] == texts
    assert [r.speaker for r in found] == (speakers or [None] * len(texts))
    assert import_records(memory, as_lines(content, name)) == 0


def test_times_and_metadata_are_kept(memory: TextMemory):
    import_records(memory, as_lines(json.dumps(CHATGPT), "c.json"))
    assert memory.records()[0].time.isoformat() == "2024-05-31T12:00:00+00:00"
    import_records(memory, as_lines("text,n\nx,1\n", "t.csv"))
    assert memory.records()[-1].metadata == {"n": "1"}


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("x.json", "[1, 2]", "entry 1 is of no known kind"),
        ("x.json", '[{"a": 1}]', "known: lines with `text`"),
        ("x.jsonl", '{"role": "user", "content": "a"}\n{', "line 2"),
        ("x.csv", "a,b\n1,2\n", "no column text"),
    ],
)
def test_what_is_unknown_is_named(name: str, content: str, said: str):
    with pytest.raises(DataError, match=said):
        as_lines(content, name)


def test_a_book_is_many_paragraphs(tmp_path: Path):
    book = "\n\n".join(f"Paragraph {i} of the book." for i in range(5000))
    assert len(as_lines(book, str(tmp_path / "book.txt"))) == 5000
