"""Settings: where they come from, what they may be, that all of them are documented."""

import re
from pathlib import Path
from typing import Any

import pytest

from cellfork.model.errors import InvalidRequest
from cellfork.model.limits import GiB, MiB
from cellfork.server.settings import OPTIONS, Settings, config_files, default_state, flag, load, variable
from cellfork.server.templates import TemplateTable

PAGE = Path(__file__).parents[2] / "docs" / "server.md"


def loaded(*texts: str, flags: dict[str, Any] | None = None, tmp_path: Path, **environ: str):
    files = []
    for number, text in enumerate(texts):
        files.append(tmp_path / f"{number}.toml")
        files[-1].write_text(text)
    return load(flags, {"HOME": str(tmp_path), **environ}, files)


def test_the_order_of_sources(tmp_path: Path):
    """A flag goes before the environment, that before the nearer file, that before the other, that before the default."""
    near, far = (
        "port = 3\nhost = '127.0.0.3'\ndrain = 3",
        "port = 4\nhost = '127.0.0.4'\ndrain = 4\nkeep_alive = 4",
    )
    settings, sources = loaded(
        near, far, flags={"port": "1"}, tmp_path=tmp_path, CELLFORK_PORT="2", CELLFORK_HOST="127.0.0.2"
    )
    assert (settings.port, settings.host, settings.drain, settings.keep_alive) == (1, "127.0.0.2", 3.0, 4.0)
    assert settings.body_limit == 40 * MiB
    assert sources["port"] == "flag --port"
    assert sources["host"] == "environment CELLFORK_HOST"
    assert sources["drain"] == str(tmp_path / "0.toml")
    assert sources["keep_alive"] == str(tmp_path / "1.toml")
    assert sources["body_limit"] == "default"


def test_files_are_looked_for_here_and_in_the_users_configuration():
    """The working directory's file goes before the user's, which is where XDG says."""
    assert config_files({"XDG_CONFIG_HOME": "/x"}) == [Path("cellfork.toml"), Path("/x/cellfork/config.toml")]
    assert config_files({"HOME": "/h"})[1] == Path("/h/.config/cellfork/config.toml")


def test_the_state_directory_is_where_xdg_says():
    """A server keeps its state in the user's state directory; ``none`` keeps nothing."""
    assert default_state({"XDG_STATE_HOME": "/x"}) == Path("/x/cellfork")
    assert load({"state": "none"}, {}, []).settings.state is None


@pytest.mark.parametrize(
    "text, told",
    [
        ("ports = 1", "ports"),
        ("port = 'many'", "port"),
        ("port = true", "port"),
        ("port = 65536", "65535"),
        ("drain = -1", "duration"),
        ("body_limit = '1 house'", "size"),
        ("log_level = 'loud'", "loud"),
        ("internet = 'all'", "none, packages, public"),
        ("node_token = 'AB12'", "node token"),
        ("node_token = 'abc'", "node token"),
        ("cors_origins = ['https://a.example/']", "origin"),
        ("cors_origins = ['*']", "origin"),
        ("cors_origins = ['https://*.example']", "origin"),
        ("cors_origins = ['null']", "origin"),
        ("allowed_hosts = ['a b']", "host name"),
        ("domain = 'http://x'", "domain"),
        ("domain = 'x:0'", "domain"),
        ("limits = {memory = '1G', luck = 1}", "luck"),
        ("limits = {memory = '1M'}", "32M"),
        ("templates = 1", "tables"),
        ("[templates.a]\ncolour = 'red'", "colour"),
        ("[templates.a]\ninterpreter = '/nowhere/python'", "interpreter"),
        ("[templates.a]\naliases = ['base']", "two templates"),
        ("api_key = 5", "texts"),
        ("anonymous = true\nhost = '0.0.0.0'", "loopback"),
        ("isolation = 'none'\nhost = '192.0.2.1'", "loopback"),
        ("tls_cert = '/c.pem'", "both"),
        ("default_timeout = '2h'\nmax_timeout = '1h'", "longer"),
        ("= 5", "0.toml"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, text: str, told: str):
    """A value that a setting cannot have is an error that says which; nothing is guessed, nothing is passed over."""
    with pytest.raises(InvalidRequest, match=re.escape(told)):
        loaded(text, tmp_path=tmp_path)


def test_a_mistake_names_its_place(tmp_path: Path):
    """An error says where the value came from."""
    with pytest.raises(InvalidRequest, match="environment CELLFORK_PORT"):
        loaded(tmp_path=tmp_path, CELLFORK_PORT="x")
    with pytest.raises(InvalidRequest, match="flag --port"):
        loaded(flags={"port": "x"}, tmp_path=tmp_path)
    with pytest.raises(InvalidRequest, match=re.escape(str(tmp_path / "0.toml"))):
        loaded("port = -1", tmp_path=tmp_path)


TEXTS: dict[str, tuple[str, Any]] = {
    "port": ("9000", 9000),
    "api_key": ("a:k1, k2", ("a:k1", "k2")),
    "anonymous": ("true", True),
    "limits": ("memory=1G,cpu=1.5,pids=none", None),
    "max_timeout": ("none", None),
    "max_sandboxes": ("none", None),
    "upload_limit": ("2G", 2 * GiB),
    "drain": ("500ms", 0.5),
    "cors_origins": (
        "https://a.example,http://localhost:3000",
        ("https://a.example", "http://localhost:3000"),
    ),
    "allowed_hosts": ("*.example.com", ("*.example.com",)),
    "node_token": ("0042", "0042"),
    "domain": ("sandbox.localhost:8080", "sandbox.localhost:8080"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_values_as_text(tmp_path: Path, name: str):
    """Flags and the environment write values as text; both read the same."""
    text, value = TEXTS[name]
    by_flag = getattr(loaded(flags={name: text}, tmp_path=tmp_path).settings, name)
    by_environment = getattr(load({}, {variable(name): text}, []).settings, name)
    assert by_flag == by_environment
    if name == "limits":
        assert (by_flag.memory, by_flag.cpu, by_flag.pids) == (GiB, 1.5, None)
    else:
        assert by_flag == value


def test_templates(tmp_path: Path):
    """Templates come from files; what E2B's clients ask for is the default one; limits that a template names are its own."""
    text = "limits = {memory = '1G'}\n[templates.small]\npreload = []\naliases = ['tiny']\nlimits = {memory = '128M'}\n"
    settings = loaded(text, tmp_path=tmp_path).settings
    table = TemplateTable(settings.templates, settings.limits)
    default, small = table.find("code-interpreter-v1"), table.find("tiny")
    assert default is not None
    assert small is not None
    assert (default.name, default.limits.memory) == ("default", GiB)
    assert (small.name, small.preload, small.limits.memory) == ("small", (), 128 * MiB)
    assert table.find("nothing") is None
    assert table.names() == ["default", "small"]
    assert table.aliases("small") == ["tiny"]


DEFAULTS = {
    "state": "`$XDG_STATE_HOME/cellfork`; as root `/var/lib/cellfork`",
    "limits": "as `cellfork run`",
    "templates": "`default`",
    "volumes": "`volumes` in the state directory",
    "body_limit": "`40M`",
    "upload_limit": "`10G`",
}
"""How defaults are told that are no plain value."""


def documented(name: str) -> str:
    """Return the row that the page must have for a setting."""
    option, default = OPTIONS[name], getattr(Settings(), name)
    spelled = "only in files" if option.only_files else f"`{flag(name)}`, `{variable(name)}`"
    plain = str(default).lower() if isinstance(default, bool) else str(default)
    told = DEFAULTS.get(name) or (f"`{plain}`" if default not in {None, ()} else "")
    meaning = option.help.replace("|", "\\|")
    return f"| `{name}` | {spelled} | {told} | {meaning} |"


def test_every_setting_is_documented():
    """The table in docs/server.md has exactly the settings that there are: flags, variables, defaults, meanings."""
    rows = re.findall(r"^\| `[a-z0-9_]+` \|.*$", PAGE.read_text(), re.MULTILINE)
    assert rows == [documented(name) for name in OPTIONS]


def test_settings_do_not_show_keys():
    """Whatever prints settings by accident prints no key."""
    assert "e2b_secret" not in repr(Settings(api_key=("e2b_secret0000000000",)))
