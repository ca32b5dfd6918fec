"""The server under load: clients that ask and tell at once, on loopback.

python benchmarks/server.py                   32 clients for 60 s at 100,000 records
python benchmarks/server.py --records 1000 --seconds 10
PYTHONPATH=tests python benchmarks/server.py --postgres        SQLite, then PostgreSQL

First one client asks alone, then all at once (one request in ten remembers), then more of them than
the queue holds. The store is made up (benchmarks/recall.py), the encoder the real one. Clients run
in this process, on the server's cores. PostgreSQL is the tests' server with durable commits, on the
same cores. Writes results/server.json, or results/server_postgres.json.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import psutil

from recall import copy_of, fill, filled, questions, sentences
from titans.evaluation.record import machine_name
from titans.files import source_commit

WRITES = 10
"""One request in so many remembers a text."""
ALONE_SECONDS = 10
OVERLOAD_SECONDS = 10
HEADERS = {"Content-Type": "application/json"}


@contextmanager
def serving(store: str | Path, queue: int):
    """The port of a server in a process of its own, and the process."""
    words = ["serve", "--store", str(store), "--port", "0", "--llm", "echo", "--rate", "1000000"]
    command = [sys.executable, "-m", "titans.cli.main", *words, "--queue", str(queue)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            first = process.stderr.readline()
            found = re.match(r"http://127.0.0.1:(\d+)", first)
            if found is None:
                raise SystemExit(first + process.stderr.read())
            # What it logs would fill the pipe.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield int(found[1]), psutil.Process(process.pid)
        finally:
            process.terminate()


class Load:
    """Clients that each send one request after the other until the time is over."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget what was measured."""
        self.seconds: dict[str, list[float]] = {"recall": [], "remember": []}
        self.others: Counter[str] = Counter()
        """Answers that are not 200 -> how many."""

    def run(self, clients: int, seconds: float, *, writes: bool) -> None:
        """Let clients work, and wait for the last answer."""
        end = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self._client, args=(number, end, writes))
            for number in range(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _client(self, number: int, end: float, writes: bool) -> None:
        asked, told = questions(997), sentences(997)
        link = HTTPConnection("127.0.0.1", self.port, timeout=120)
        place = 31 * number
        while time.monotonic() < end:
            place += 1
            kind, path, body = "recall", "/v1/memories/recall", {"query": asked[place % 997]}
            if writes and place % WRITES == 0:
                kind, path, body = "remember", "/v1/memories", {"text": told[place % 997]}
            begin = time.perf_counter()
            try:
                link.request("POST", path, json.dumps(body), HEADERS)
                answer = link.getresponse()
                answer.read()
                status = str(answer.status)
            except OSError as error:
                status = type(error).__name__
                link.close()
            seconds = time.perf_counter() - begin
            with self.lock:
                if status == "200":
                    self.seconds[kind].append(seconds)
                else:
                    wait = "" if status != "503" else answer.headers.get("Retry-After", "none")
                    self.others[f"{status} Retry-After {wait}" if wait else status] += 1
            if status == "503":
                time.sleep(0.05)  # sooner than it is told to: the queue stays full

    def report(self, cpu: float) -> dict[str, object]:
        """Percentiles in milliseconds, counts and what was no success.

        Args:
            cpu: seconds that the server worked.
        """
        done = sum(map(len, self.seconds.values()))
        found: dict[str, object] = {"server_cpu_ms_per_call": round(1000 * cpu / max(done, 1), 1)}
        for kind, seconds in self.seconds.items():
            if seconds:
                p50, p95 = (1000 * float(np.percentile(seconds, p)) for p in (50, 95))
                found |= {f"{kind}s": len(seconds)}
                found |= {f"{kind}_p50_ms": round(p50, 1), f"{kind}_p95_ms": round(p95, 1)}
        return {**found, "others": dict(self.others)}


def _cpu(process: psutil.Process) -> float:
    """Seconds that a process has worked."""
    times = process.cpu_times()
    return times.user + times.system


def postgres_place(records: int) -> str:
    """The address of a filled store in a PostgreSQL server that keeps what it acknowledges."""
    from support import postgres

    with postgres.server().admin() as db:
        for name in ("fsync", "synchronous_commit", "full_page_writes"):  # the tests turn them off
            db.execute(f"ALTER SYSTEM SET {name} = on".encode())
        db.execute("SELECT pg_reload_conf()")
    place = postgres.new_place()
    fill(place, records)
    with postgres.server().admin() as db:
        db.execute("CHECKPOINT")
    return place


def measure(store: str | Path, args: argparse.Namespace) -> dict[str, object]:
    """One client, all clients, too many clients."""
    with serving(store, args.queue) as (port, process):
        load = Load(port)
        load.run(1, 3, writes=False)  # opens the scope, warms up
        load.clear()
        cpu = _cpu(process)
        load.run(1, ALONE_SECONDS, writes=False)
        alone = load.report(_cpu(process) - cpu)
        load.clear()
        load.run(args.clients, args.seconds / 10, writes=True)  # all buffers have their size
        load.clear()
        before, cpu = process.memory_info().rss, _cpu(process)
        load.run(args.clients, args.seconds, writes=True)
        after, cpu = process.memory_info().rss, _cpu(process) - cpu
        together = load.report(cpu)
        load.clear()
        begun = _cpu(process)
        load.run(3 * args.queue, OVERLOAD_SECONDS, writes=False)
        beyond = load.report(_cpu(process) - begun)
    ratio = float(str(together["recall_p95_ms"])) / float(str(alone["recall_p50_ms"]))
    return {
        "one client": alone,
        "all clients": together,
        "p95 of all to p50 of one": round(ratio, 1),
        "cores that the server used": round(cpu / args.seconds, 2),
        "memory_MB": [round(size / 1e6, 1) for size in (before, after)],
        f"{3 * args.queue} clients at a queue of {args.queue}": beyond,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("out/recall-bench"))
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--queue", type=int, default=64)
    parser.add_argument("--postgres", action="store_true", help="measure PostgreSQL beside SQLite")
    args = parser.parse_args()
    load = os.getloadavg()[0]  # of others: measured times mean what they say on an idle machine
    report = {
        "command": " ".join(["python", "benchmarks/server.py", *sys.argv[1:]]),
        "machine": machine_name(),
        "load_average": f"{load:.1f} on {os.cpu_count()} cores",
        "commit": source_commit(),
        "records": args.records,
        "clients": args.clients,
        "seconds": args.seconds,
    }
    found = measure(copy_of(filled(args.folder, args.records)), args)
    if args.postgres:
        postgres = measure(postgres_place(args.records), args)
        report |= {"SQLite": found, "PostgreSQL": postgres}
    else:
        report |= found
    name = "server_postgres.json" if args.postgres else "server.json"
    target = Path(__file__).parent / "results" / name
    target.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
