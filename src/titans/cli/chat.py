"""`titans chat`: a terminal chat that remembers between runs."""

import argparse
import sys
from typing import TYPE_CHECKING

from titans.cli.store_options import add_store_options, as_json, open_memory
from titans.cli.values import whole

if TYPE_CHECKING:
    from titans.recall import ChatSession, Turn

EXAMPLES = """examples:
  titans chat
  titans chat --scope ann --llm openai:gpt-5-mini
  titans chat --llm openai:qwen3 --url http://localhost:8000/v1 --no-remember-answers

--llm: smollm (default, offline), gguf:FILE, hf:NAME, openai:MODEL, or echo (no model).
In the chat: /why explains the last recall, /forget ID removes a record, /forget the last turn,
/quit ends.
"""
COMMANDS = "/why explains the last recall, /forget [ID] removes a record or the turn, /stats, /quit"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EXAMPLES
    parser.add_argument("--llm", default="smollm", help="the model that answers (smollm)")
    parser.add_argument("--url", help="of an OpenAI-compatible server")
    parser.add_argument("--window", type=whole(), help="tokens that the model can see at once")
    parser.add_argument("--speaker", default="user", help="your name in the memory (user)")
    parser.add_argument("--persistent", action="append", help="a text that stands in every prompt")
    parser.add_argument(
        "--remember-answers",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="remember what the model says, too (yes)",
    )
    add_store_options(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object per turn on stdout")


def run(args: argparse.Namespace) -> int:
    """Read lines, answer them."""
    from titans.errors import ConfigError, GeneratorError
    from titans.recall import ChatSession, load_generator

    try:
        llm = load_generator(
            args.llm,
            url=args.url,
            window=args.window,
            trust_remote_code=args.trust_remote_code,
        )
    except GeneratorError as error:
        raise ConfigError(str(error)) from error
    with open_memory(args) as memory:
        memory.config = memory.config.change(remember_answers=args.remember_answers)
        if args.persistent:
            memory.persistent_texts = args.persistent
        return _Chat(ChatSession(memory, llm, speaker=args.speaker), args.json).loop()


class _Chat:
    """The loop: a line from the user, an answer, what was recalled."""

    def __init__(self, session: "ChatSession", as_json: bool) -> None:
        self.session, self.as_json = session, as_json
        self.memory, self.llm = session.memory, session.llm
        self.last: Turn | None = None

    def loop(self) -> int:
        """Until /quit or the end of the input."""
        from titans.files import read_stdin

        self._note(f"{self.llm.name}; memory: {self.memory.store.name}, scope {self.memory.scope}")
        if "SmolLM2-135M" in self.llm.name:
            self._note("a very small model: good for trying things out, often wrong; see --llm")
        self._note(COMMANDS)
        while True:
            print("> ", end="", file=sys.stderr, flush=True)
            line = read_stdin(one_line=True)
            if not line or line.strip() in ("/quit", "/exit"):
                return 0
            if line.strip():
                self._handle(line.strip())

    def _handle(self, line: str) -> None:
        from titans.errors import TitansError

        try:
            if line.startswith("/"):
                self._command(*line.split(maxsplit=1))
            else:
                self._turn(line)
        except TitansError as error:
            self._note(f"error: {error}")

    def _turn(self, line: str) -> None:
        from titans.terminal import printable

        def show(piece: str) -> None:
            shown = (c if c in "\n\t" else printable(c) for c in piece)
            print("".join(shown), end="", flush=True)

        on_text = None if self.as_json else show
        self.last = turn = self.session.turn(line, on_text)
        if self.as_json:
            print(
                as_json(
                    {
                        "answer": turn.answer,
                        "record": turn.record.as_dict(),
                        "memories": [m.as_dict() for m in turn.memories],
                    }
                ),
                flush=True,
            )
            return
        print(flush=True)
        recalled = "; ".join(f"{m.score:.2f} {m.text[:60]!r}" for m in turn.memories) or "nothing"
        written = "written" if turn.record.written else "not written"
        self._note(f"surprise {turn.record.surprise:.1f} ({written}); recalled: {recalled}")

    def _command(self, name: str, argument: str = "") -> None:
        if name == "/why":
            self._why()
        elif name == "/forget":
            self._forget(argument)
        elif name == "/stats":
            for key, value in self.memory.stats().items():
                shown = f"{value:.4g}" if isinstance(value, float) else value
                self._note(f"{key.replace('_', ' ')}: {shown}")
        else:
            self._note(f"unknown command {name}; {COMMANDS}")

    def _forget(self, id: str) -> None:
        turn = self.last
        if not id and turn is None:
            self._note("nothing to forget yet: /forget ID")
            return
        last = [] if turn is None else [turn.record, turn.answer_record]
        ids = [id] if id else [record.id for record in last if record is not None]
        done = [self.session.forget(id) for id in ids]
        count = sum(d.records for d in done)
        self._note(
            f"forgotten: {count} record{'s' * (count != 1)}, {sum(d.seconds for d in done):.1f} s"
        )
        if not id:
            self.last = None

    def _why(self) -> None:
        from titans.recall.records import as_sum

        if self.last is None:
            self._note("nothing was asked yet")
            return
        self._note(f"id {self.last.record.id}: {self.last.record.reason}")
        for m in self.last.memories:
            self._note(f"{m.score:.2f} {m.text!r} (id {m.id})")
            self._note(f"     {m.why} {as_sum(m.parts)}")

    def _note(self, text: str) -> None:
        from titans.terminal import printable

        print(printable(text), file=sys.stderr, flush=True)
