"""What only remote sandboxes have: a server that says no, other clients, connections that break."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cellfork import (
    AsyncSandbox,
    InvalidRequest,
    LimitExceeded,
    Limits,
    NotFound,
    Sandbox,
    SandboxGone,
    Template,
    Unauthorized,
    UnavailableError,
    Unsupported,
)
from cellfork.client import transport as transports
from cellfork.client.http.transport import HttpTransport
from cellfork.model.errors import ProtocolViolation
from cellfork.testing.fakes import FakeRuntime
from tests.client.conftest import Place
from tests.served import KEY, OTHER_KEY, served


@pytest.fixture
def unshared() -> Iterator[None]:
    """Transports that ``url=`` makes, closed at the end of the test."""
    yield
    transports.served.cache_clear()


def close_shared(*arguments: str) -> None:
    transports.served(*arguments).close()  # type: ignore[attr-defined]


def test_a_url_and_a_key_are_all_it_takes(remote: Place, unshared: None):
    """``Sandbox.create(url=…, api_key=…)`` gives the same object that an embedded one is."""
    assert remote.server is not None
    with Sandbox.create(url=remote.server.url, api_key=KEY, isolation="fake") as sandbox:
        assert sandbox.run_code("7").text == "7"
        assert sandbox.info.tenant == "alice"
    close_shared(remote.server.url, KEY)


@pytest.mark.parametrize("variable", [KEY, f"alice:{KEY}", f" {KEY} , other:{OTHER_KEY}"])
def test_the_environment_names_a_server(
    remote: Place, unshared: None, monkeypatch: pytest.MonkeyPatch, variable: str
):
    """``CELLFORK_URL`` and ``CELLFORK_API_KEY`` do the same, in the form in which a server takes its own keys."""
    assert remote.server is not None
    monkeypatch.setenv("CELLFORK_URL", remote.server.url + "/")
    monkeypatch.setenv("CELLFORK_API_KEY", variable)
    with Sandbox.create(isolation="fake") as sandbox:
        assert sandbox.run_code("7").text == "7"
    close_shared(remote.server.url + "/", KEY)


def test_a_prefix_addresses_the_dialect_as_well(remote: Place):
    """``/e2b`` in the URL reaches the same, whatever else owns the bare paths."""
    assert remote.server is not None
    transport = HttpTransport(remote.server.url + "/e2b", KEY)
    with Sandbox.create(isolation="fake", transport=transport) as sandbox:
        assert sandbox.run_code("print a\n7").text == "7"
        sandbox.files.write("f", "x")
        assert sandbox.files.read("f") == "x"
    transport.close()


@pytest.mark.parametrize("key", [None, "", "wrong", "e2b_" + 40 * "c"])
def test_a_wrong_key_is_told(remote: Place, key: str | None):
    """A key that the server does not know opens nothing."""
    assert remote.server is not None
    transport = HttpTransport(remote.server.url, key)
    with pytest.raises(Unauthorized):
        Sandbox.create(isolation="fake", transport=transport)
    with pytest.raises(Unauthorized):
        Sandbox.list(transport=transport)
    transport.close()
    assert remote.runtime.guests == []


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://localhost", "http://", "http://[::1"])
def test_what_is_no_url_is_told(url: str, unshared: None):
    """A mistake in the URL is an error of the call that tells what a URL looks like."""
    with pytest.raises((InvalidRequest, UnavailableError)):
        Sandbox.create(url=url, api_key=KEY)
    transports.served.cache_clear()


def test_a_key_that_no_header_carries_is_told(unshared: None):
    """The key is not shown."""
    with pytest.raises(InvalidRequest) as caught:
        Sandbox.create(url="http://localhost:1", api_key="geheim\n")
    assert "geheim" not in str(caught.value)


def test_a_server_that_is_not_there_is_told():
    """Nobody listens: our failure, with the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    transport = HttpTransport(f"http://127.0.0.1:{port}", KEY)
    with pytest.raises(UnavailableError, match=str(port)):
        Sandbox.create(transport=transport)
    transport.close()


@pytest.mark.parametrize(
    "answer, error",
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", ProtocolViolation),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", ProtocolViolation),
        (b"HTTP/1.1 302 Found\r\nlocation: https://x/\r\ncontent-length: 0\r\n\r\n", Unsupported),
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy", UnavailableError),
        (b'HTTP/1.1 400 No\r\ncontent-length: 17\r\n\r\n{"error": ["x"]}\n', InvalidRequest),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{", UnavailableError),
        (b"nonsense\r\n\r\n", UnavailableError),
        (b"", UnavailableError),
    ],
    ids=["another server", "no JSON", "redirect", "busy", "odd error", "cut", "no HTTP", "closed"],
)
def test_answers_of_other_servers_are_typed_errors(answer: bytes, error: type[Exception]):
    """Whatever answers at the URL: a typed error, never an accident."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        transport = HttpTransport(f"http://127.0.0.1:{listener.getsockname()[1]}", KEY)
        with pytest.raises(error):
            Sandbox.create(transport=transport)
        thread.join()
        transport.close()


# ------------------------------------------------------------------------------------------ other clients


def test_another_client_goes_on(remote: Place):
    """A sandbox is found by its id, with its contexts and variables; it lives on when its creator is gone."""
    assert remote.server is not None
    first = remote.create(metadata={"k": "v"}, timeout=60)
    first.run_code("1")
    other = HttpTransport(remote.server.url, KEY)
    second = Sandbox.connect(first.sandbox_id, transport=other)
    assert second.run_code("2").execution_count == 2
    assert second.info.metadata == {"k": "v"}
    end = first.get_info().end_at
    assert second.info.end_at == end
    Sandbox.connect(first.sandbox_id, 30, transport=other)
    assert first.get_info().end_at == end, "connecting never shortens"
    longer = Sandbox.connect(first.sandbox_id, 600, transport=other).info.end_at
    assert longer is not None
    assert end is not None
    assert (longer - end).total_seconds() == pytest.approx(540, abs=5)
    assert [info.sandbox_id for info in Sandbox.list(transport=other)] == [first.sandbox_id]
    assert Sandbox.kill(first.sandbox_id, transport=other)
    assert not Sandbox.kill(first.sandbox_id, transport=other)
    other.close()
    assert not first.is_running()
    with pytest.raises(SandboxGone) as caught:
        first.run_code("1")
    assert caught.value.reason == "request"
    assert first.kill() is False


def test_sandboxes_of_this_process_are_found_too(embedded: Place):
    """Without a server ``connect``, ``list`` and ``kill`` mean the engine of this process."""
    first = embedded.create(timeout=60)
    assert Sandbox.connect(first.sandbox_id, transport=embedded.transport).run_code("7").text == "7"
    Sandbox.connect(first.sandbox_id, 600, transport=embedded.transport)
    (info,) = Sandbox.list(transport=embedded.transport)
    assert info.end_at is not None
    assert (info.end_at - info.started_at).total_seconds() == pytest.approx(600, abs=5)
    assert Sandbox.kill(first.sandbox_id, transport=embedded.transport)
    assert not Sandbox.kill(first.sandbox_id, transport=embedded.transport)
    with pytest.raises(NotFound):
        Sandbox.connect(first.sandbox_id, transport=embedded.transport)
    assert Sandbox.list(transport=embedded.transport) == []


async def test_the_async_form_has_them_as_well(place: Place):
    """``AsyncSandbox.connect``, ``list`` and ``kill``."""
    first = await place.create_async()
    second = await AsyncSandbox.connect(first.sandbox_id, transport=place.transport)
    assert (await second.run_code("7")).text == "7"
    assert len(await AsyncSandbox.list(transport=place.transport)) == 1
    assert await AsyncSandbox.kill(first.sandbox_id, transport=place.transport)
    assert await AsyncSandbox.list(transport=place.transport) == []


def test_tenants_see_only_their_own(remote: Place):
    """Another key's sandbox is not there: not to connect, not in the list, not to kill."""
    assert remote.server is not None
    sandbox = remote.create()
    bob = HttpTransport(remote.server.url, OTHER_KEY)
    with pytest.raises(NotFound):
        Sandbox.connect(sandbox.sandbox_id, transport=bob)
    assert Sandbox.list(transport=bob) == []
    assert not Sandbox.kill(sandbox.sandbox_id, transport=bob)
    bob.close()
    assert sandbox.is_running()


def test_the_reason_of_an_end_is_told_afterwards(remote: Place):
    """Who comes back after the deadline hears that it was the deadline."""
    sandbox = remote.create(timeout=0.2)
    sandbox.get_info()
    deadline = time.monotonic() + 5
    while sandbox.is_running() and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(SandboxGone) as caught:
        sandbox.files.read("x")
    assert caught.value.reason == "deadline"
    assert sandbox.get_info().state == "ended"


# ------------------------------------------------------------------------------------ what a server decides


@pytest.mark.parametrize(
    "fields, error",
    [
        ({"tenant": "x"}, Unsupported),
        ({"template": Template(interpreter="/usr/bin/python3")}, Unsupported),
        ({"template": Template(preload=())}, Unsupported),
        ({"template": "nope"}, NotFound),
        ({"limits": Limits(memory="64G")}, LimitExceeded),
        ({"limits": Limits(memory=None)}, LimitExceeded),
        ({"network": "public"}, Unsupported),
        ({"timeout": -1}, InvalidRequest),
        ({"envs": {"A=B": "x"}}, InvalidRequest),
        ({"envs": {"A": 1}}, InvalidRequest),
        ({"metadata": {"a": {1, 2}}}, InvalidRequest),
    ],
    ids=str,
)
def test_what_a_server_does_not_give_is_refused(
    remote: Place, fields: dict[str, Any], error: type[Exception]
):
    """Nothing is accepted and ignored: a typed error that says what the server gives instead."""
    with pytest.raises(error):
        remote.create(**fields)
    assert remote.runtime.guests == []


def test_another_isolation_is_refused(remote: Place):
    """Whoever asks for an isolation gets that one or an error; the default is one."""
    with pytest.raises(Unsupported, match="fake"):
        Sandbox.create(transport=remote.transport)


def test_a_life_without_end_needs_a_server_that_gives_it():
    """``timeout=None`` and very long lives are refused where the server bounds them, at creation and later."""
    runtime = FakeRuntime()
    with served({"fake": runtime}, max_timeout=3600.0) as server:
        transport = HttpTransport(server.url, KEY)
        for timeout in (None, 7200):
            with pytest.raises(InvalidRequest, match="3600"):
                Sandbox.create(isolation="fake", transport=transport, timeout=timeout)
        sandbox = Sandbox.create(isolation="fake", transport=transport, timeout=3600)
        with pytest.raises(InvalidRequest):
            sandbox.set_timeout(None)
        transport.close()


def test_limits_of_a_template_are_the_servers_unless_lower_ones_are_asked_for(remote: Place):
    """Who names none gets the template's; lower ones hold."""
    assert remote.create().info.limits.memory_bytes == 8 * 2**30
    assert remote.create(limits=Limits(memory="64M")).info.limits.memory_bytes == 64 * 2**20


# ------------------------------------------------------------------------------------ broken connections


def test_code_whose_server_dies_is_lost():
    """A connection that breaks ends the execution with what there was until then: never an empty success, never a wait."""
    runtime, seen = FakeRuntime(), threading.Event()
    outcome: list[Any] = []
    with served({"fake": runtime}) as server:
        transport = HttpTransport(server.url, KEY)
        sandbox = Sandbox.create(isolation="fake", transport=transport)

        def run() -> None:
            outcome.append(sandbox.run_code("print a\nhang", on_stdout=lambda _message: seen.set()))

        thread = threading.Thread(target=run)
        thread.start()
        assert seen.wait(5)
    thread.join(10)
    (execution,) = outcome
    assert execution.logs.stdout == ["a\n"]
    assert execution.status in {"lost", "killed"}
    with pytest.raises(UnavailableError):
        sandbox.run_code("1")
    transport.close()


def test_a_client_that_dies_stops_its_code(remote: Place):
    """The code of a client whose process ended is interrupted; its sandbox lives on."""
    assert remote.server is not None
    sandbox = remote.create()
    program = (
        "import sys\nfrom cellfork import Sandbox\n"
        f"sandbox = Sandbox.connect({sandbox.sandbox_id!r}, url={remote.server.url!r}, api_key={KEY!r})\n"
        "sandbox.run_code('print a\\nhang', on_stdout=lambda message: print(message, flush=True))\n"
    )
    client = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    assert client.stdout.readline() == "a\n"
    client.kill()
    client.wait()
    client.stdout.close()
    assert sandbox.run_code("2").text == "2"
    assert remote.guest.requests("interrupt")


def test_a_creation_that_is_given_up_leaves_no_sandbox(remote: Place):
    """A sandbox that came when nobody waited for it any more is killed."""
    from cellfork.client.bridges import Bridge

    bridge = Bridge(remote.transport.host)

    async def give_up() -> None:
        import asyncio

        from cellfork.model.specs import SandboxSpec

        task = asyncio.create_task(remote.transport.create(SandboxSpec(isolation="fake")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()

    bridge.call(give_up)
    deadline = time.monotonic() + 5
    while (not remote.runtime.guests or not remote.guest.killed) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert remote.guest.killed


def test_importing_the_sdk_imports_no_http():
    """What only remote sandboxes need is loaded when one is asked for."""
    program = (
        "import sys\nfrom cellfork import Sandbox, AsyncSandbox\n"
        "print(sorted({'httpx2', 'msgspec', 'asyncio', 'cellfork.client.http', 'ssl'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
