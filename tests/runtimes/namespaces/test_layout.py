"""What a sandbox sees of the host."""

from pathlib import Path

from cellfork.runtimes.interpreter import Interpreter
from cellfork.runtimes.namespaces import layout

PYTHON = Interpreter(
    "/env/bin/python", "/env", "/base/python", "3.11", ("/env/lib/python3.11/site-packages",)
)


def entries_around(python: Interpreter, kind: str = "bind") -> list[list]:
    return [entry for entry in layout.template_root(python, "/code/cellfork") if entry[0] == kind]


def entries(kind: str) -> list[list]:
    return entries_around(PYTHON, kind)


def test_no_home_and_no_secret_of_the_host_is_bound():
    """Binds come from the system's read-only trees, the interpreter and cellfork's code; never from homes or /etc as a whole."""
    allowed = (*layout.SYSTEM_DIRS, "/dev/", "/etc/", "/env", "/base/python", "/code/cellfork")
    for _kind, _path, source, _flags in entries("bind"):
        assert source.startswith(allowed), source
        assert source not in {"/", "/etc", "/home", "/root", "/var", "/run", "/sys", "/proc"}


def test_what_identifies_users_and_hosts_is_made_up():
    """passwd, group, hosts, hostname and resolv.conf are files of ours, not the host's."""
    written = {path for _kind, path, _text, _mode in entries("file")}
    assert {"/etc/passwd", "/etc/group", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"} <= written
    bound = {path for _kind, path, _source, _flags in entries("bind")}
    assert not bound & {"/etc/passwd", "/etc/shadow", "/etc/ssh", "/etc/hostname", "/etc/machine-id"}


def test_every_bind_but_devices_is_read_only():
    """A bind is read-only, nosuid and nodev; a device node is nosuid and noexec."""
    for _kind, path, _source, flags in entries("bind"):
        assert flags == (layout.DEVICE if path.startswith("/dev/") else layout.READ_ONLY), path


def test_an_interpreter_inside_the_system_is_not_bound_twice():
    """A Python below /usr is there already."""
    system = Interpreter("/usr/bin/python3.11", "/usr", "/usr", "3.11", ("/usr/lib/python3/dist-packages",))
    root = layout.template_root(system, "/code/cellfork")
    assert [entry[1] for entry in root if entry[0] == "bind"].count("/usr") <= 1


def test_the_writable_environment_puts_the_template_behind_itself():
    """pip inside a sandbox installs in front of the template's packages, which it sees but does not own."""
    files = {path: content for kind, path, content in layout.sandbox_environment(PYTHON) if kind == "file"}
    assert "home = /base/python/bin" in files[f"{layout.VENV_PLACE}/pyvenv.cfg"]
    (behind,) = [content for path, content in files.items() if path.endswith(".pth")]
    assert "/env/lib/python3.11/site-packages" in behind


def test_what_proc_shows_is_an_allow_list(tmp_path: Path):
    """Whatever a kernel has in /proc is hidden unless it is named; processes are seen; /proc/sys is read-only."""
    for name in ("kcore", "meminfo", "version", "a-new-file"):
        (tmp_path / name).touch()
    for name in ("sys", "sysvipc", "1", "a-new-directory"):
        (tmp_path / name).mkdir()
    (tmp_path / "self").symlink_to("1")
    (tmp_path / "mounts").symlink_to("self/mounts")
    assert layout.proc_restrictions(str(tmp_path)) == {
        "proc_hidden_files": ["/proc/a-new-file", "/proc/kcore"],
        "proc_hidden_dirs": ["/proc/a-new-directory"],
        "proc_read_only": ["/proc/sys"],
    }


def test_an_interpreter_below_a_private_place_is_put_back():
    """A sandbox's own /tmp and home would cover it; /var/tmp is /tmp inside."""
    for prefix in ("/tmp/env", "/var/tmp/env", "/home/user/env"):
        python = Interpreter(f"{prefix}/bin/python", prefix, "/base/python", "3.11", ())
        assert [path for path, _kept in layout.covered_prefixes(python)] == [prefix]


def test_an_environment_behind_a_link(tmp_path: Path):
    """Where a directory of the interpreter is a link, what it leads to is bound at the place that it is known by."""
    (tmp_path / "real" / "bin").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    prefix = str(tmp_path / "link")
    python = Interpreter(f"{prefix}/bin/python", prefix, "/base/python", "3.11", ())
    sources = [entry[2] for entry in entries_around(python) if str(tmp_path) in entry[2]]
    assert str(tmp_path / "real") in sources
    assert prefix not in sources
