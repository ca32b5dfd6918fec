"""`titans keys ACTION`: make, list and revoke the keys of a server."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from titans.cli.store_options import as_json, data_folder, default_store

if TYPE_CHECKING:
    from titans.server.keys import KeyRing, Right

EXAMPLES = """examples:
  titans keys make laptop --scope ann
  titans keys make bot --scope 'team-*' --right read --right write --untrusted
  titans keys list
  titans keys revoke laptop

rights: read (recall, list, export), write (remember, import), forget, admin (metrics, scopes).
A chat needs read and write.
"""


def add_keys_option(parser: argparse.ArgumentParser) -> None:
    """Declare where the keys are."""
    parser.add_argument(
        "--keys", type=Path, help="the folder of the keys (beside the store, FILE.keys)"
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    parser.epilog = EXAMPLES
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    make = _action(actions, "make", "make a key; its text is printed this once")
    make.add_argument("name", metavar="NAME", help="shown with all that is remembered through it")
    make.add_argument(
        "--scope", action="append", required=True, help="a scope, or its beginning and a *"
    )
    make.add_argument(
        "--right",
        action="append",
        choices=["read", "write", "forget", "admin"],
        help="what it allows (read and write)",
    )
    make.add_argument(
        "--untrusted", action="store_true", help="what it writes is marked as untrusted"
    )
    _action(actions, "list", "all keys, without their secrets")
    revoke = _action(actions, "revoke", "remove a key: it stops working at once")
    revoke.add_argument("name", metavar="NAME", help="its name or id")


def _action(actions, name: str, text: str) -> argparse.ArgumentParser:
    parser = actions.add_parser(
        name,
        help=text,
        description=text,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", help="the store of the server (as for `titans serve`)")
    add_keys_option(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def open_ring(args: argparse.Namespace) -> "KeyRing":
    """The keys that the options name."""
    from titans.server.keys import KeyRing, keys_folder

    store = args.store or default_store()
    return KeyRing(args.keys or keys_folder(store) or data_folder() / "server.keys")


def run(args: argparse.Namespace) -> int:
    """Do what was asked."""
    ring = open_ring(args)
    if args.action == "make":
        rights: list[Right] = args.right or ["read", "write"]
        key, token = ring.make(args.name, args.scope, rights, is_trusted=not args.untrusted)
        if args.json:
            print(as_json({"id": key.id, "name": key.name, "key": token}))
        else:
            print(token)
        return 0
    if args.action == "revoke":
        key = ring.revoke(args.name)
        print(as_json({"revoked": key.id}) if args.json else f"revoked {key.name} ({key.id})")
        return 0
    keys = [
        {
            "id": key.id,
            "name": key.name,
            "scopes": list(key.scopes),
            "rights": list(key.rights),
            "trusted": key.is_trusted,
            "created": key.created,
        }
        for key in ring.all()
    ]
    if args.json:
        print(as_json(keys))
        return 0
    for key in keys:
        scopes, allowed = ", ".join(key["scopes"]), ", ".join(key["rights"])
        trust = "trusted" if key["trusted"] else "untrusted"
        print(f"{key['id']}  {key['name']}: {scopes}; {allowed}; {trust}; made {key['created']}")
    if not keys:
        print("no keys")
    return 0
