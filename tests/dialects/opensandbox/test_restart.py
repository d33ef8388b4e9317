"""The server is killed with ``kill -9``: OpenSandbox's clients go on with the next one, with what they were told."""

import os
import signal
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

import httpx2
import pytest

from tests.dialects.opensandbox.conftest import IDLE, IMAGE
from tests.server.conftest import KEY
from tests.server.processes import Served, served

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can map the ids of a volume")
WANTED: dict[str, Any] = {
    "image": IMAGE,
    "entrypoint": IDLE,
    "timeout": 600,
    "resourceLimits": {"memory": "256Mi"},
    "metadata": {"tag": "kept"},
    "secureAccess": True,
    "networkPolicy": {"defaultAction": "deny", "egress": [{"action": "allow", "target": "a.example.com"}]},
}


class Client:
    """A client of one server; what it was told outlives that."""

    def __init__(self, server: Served) -> None:
        self._http = httpx2.Client(
            base_url=server.told["url"], timeout=30, headers={"OPEN-SANDBOX-API-KEY": KEY}
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._http.close()

    def call(self, method: str, path: str, **options: Any) -> Any:
        answer = self._http.request(method, f"/v1{path}", **options)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def shell(self, id: str, headers: dict[str, str], command: str) -> str:
        path = f"/sandboxes/{id}/proxy/44772/command"
        answer = self._http.post(path, json={"command": command}, headers=headers)
        lines = [line for line in answer.text.split("\n\n") if '"type":"stdout"' in line]
        return "\n".join(httpx2.Response(200, content=line).json()["text"] for line in lines)


def test_everything_goes_on(tmp_path: Path) -> None:
    """Tokens, metadata, the policy, volumes of both kinds, and what listens inside are as they were.

    A volume that goes with its sandbox stays while that lives, whoever serves it, and goes with it then.
    """
    host = tmp_path / "host"
    host.mkdir()
    host.chmod(0o777)
    volumes = [
        {"name": "h", "host": {"path": str(host)}, "mountPath": "/home/user/host"},
        {
            "name": "n",
            "pvc": {"claimName": "mine", "deleteOnSandboxTermination": True},
            "mountPath": "/workspace",
        },
    ]
    arguments = ("--state", str(tmp_path / "state"), "--host-volumes", str(host))
    with served(tmp_path, *arguments, keep=True) as server, Client(server) as client:
        id = client.call("POST", "/sandboxes", json={**WANTED, "volumes": volumes})["id"]
        headers = client.call("GET", f"/sandboxes/{id}/endpoints/44772")["headers"]
        told = client.call("GET", f"/sandboxes/{id}")
        client.shell(id, headers, "echo one > /home/user/host/f; echo two > /workspace/f")
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    (mine,) = (tmp_path / "state/volumes").glob("*/mine")
    with served(tmp_path, *arguments) as server, Client(server) as client:
        again = client.call("GET", f"/sandboxes/{id}")
        ends = [datetime.fromisoformat(each.pop("expiresAt")) for each in (told, again)]
        assert again == told
        assert abs(ends[0] - ends[1]) < timedelta(seconds=0.1)
        assert client.call("GET", f"/sandboxes/{id}/endpoints/44772")["headers"] == headers
        assert client.call("GET", f"/sandboxes/{id}/networkpolicy")["policy"] == WANTED["networkPolicy"]
        assert (
            client.shell(id, headers, "cat /home/user/host/f /workspace/f; echo more >> /workspace/f")
            == "one\ntwo"
        )
        assert (
            client.shell(id, headers, "bash -c 'exec 3<>/dev/tcp/127.0.0.1/44771' && echo there") == "there"
        )
        assert (mine / "f").read_text() == "two\nmore\n"
        client.call("DELETE", f"/sandboxes/{id}")
        deadline = time.monotonic() + 10
        while mine.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert (host / "f").read_text() == "one\n"
