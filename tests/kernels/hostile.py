"""A kernel that answers what it must, and before that says everything that a kernel should not.

Runs inside a sandbox, as ``python hostile.py CONNECTION_FILE``.
"""

import json
import sys

import zmq
from jupyter_client.session import Session


def main(path: str) -> None:
    with open(path) as file:
        where = json.load(file)
    session = Session(key=where["key"].encode())
    session.pack = lambda value: json.dumps(
        value, default=str
    ).encode()  # so that it can say half a surrogate pair
    context = zmq.Context()
    shell, iopub, *_others = (
        bind(context, where, name, kind)
        for name, kind in (
            ("shell", zmq.ROUTER),
            ("iopub", zmq.PUB),
            ("stdin", zmq.ROUTER),
            ("control", zmq.ROUTER),
        )
    )
    while True:
        identities, rest = session.feed_identities(shell.recv_multipart())
        message = session.deserialize(rest)
        kind = message["header"]["msg_type"]
        say(session, iopub, "status", {"execution_state": "busy"}, message)
        if kind == "execute_request":
            misbehave(session, iopub, shell, identities, message)
            content = {"status": "ok", "execution_count": True, "payload": "none"}
            session.send(shell, "execute_reply", content, parent=message, ident=identities)
        else:
            session.send(shell, "kernel_info_reply", {"status": "ok"}, parent=message, ident=identities)
        say(session, iopub, "status", {"execution_state": "idle"}, message)


def misbehave(session, iopub, shell, identities, parent) -> None:
    forger = Session(key=b"guessed")
    say(forger, iopub, "stream", {"name": "stdout", "text": "forged"}, parent)
    say(forger, shell, "execute_reply", {"status": "error", "ename": "Forged"}, parent, ident=identities)
    for parts in (
        [b""],
        [b"<IDS|MSG>"],
        [b"<IDS|MSG>", b"x" * 64, b"[]", b"{}", b"{}", b"{}"],
        [b"\xff" * 9] * 9,
    ):
        iopub.send_multipart(parts)
    deep = json.loads("[" * 500 + "]" * 500)
    for content in (
        {},
        {"name": 5, "text": "x"},
        {"name": "stdout", "text": ["x"]},
        {"name": "stdout", "text": None},
        {"data": [], "metadata": 7, "transient": "x"},
        {"data": {"text/plain": deep, "no mime": 1, "image/png": "%%%"}, "metadata": {"a": deep}},
        {"execution_state": ["idle"]},
        {"wait": {"a": 1}},
    ):
        for kind in (
            "stream",
            "display_data",
            "execute_result",
            "update_display_data",
            "clear_output",
            "status",
            "x" * 9000,
        ):
            say(session, iopub, kind, content, parent)
    say(session, iopub, "stream", {"name": "stdout", "text": "\ud800 kept\n"}, parent)


def say(session, sock, kind, content, parent, ident=None) -> None:
    session.send(sock, kind, content, parent=parent, ident=ident)


def bind(context, where, name, kind):
    opened = context.socket(kind)
    opened.bind(f"{where['transport']}://{where['ip']}-{where[name + '_port']}")
    return opened


if __name__ == "__main__":
    main(sys.argv[1])
