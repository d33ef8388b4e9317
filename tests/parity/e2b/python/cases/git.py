"""The helpers for git, which are commands with another face."""

from harness import Client, case, raises


async def repository(client: Client):
    """A sandbox with a repository of one commit."""
    sandbox = await client.create()
    await sandbox.git.configure_user("Ann", "ann@example.com")
    await sandbox.git.init("repo", initial_branch="main")
    await sandbox.files.write("repo/a.txt", "1\n")
    await sandbox.git.add("repo")
    await sandbox.git.commit("repo", "first")
    return sandbox


@case("Git.init")
async def commits_and_status(client: Client) -> None:
    """A repository is made, filled and committed to; its status tells what changed."""
    sandbox = await repository(client)
    assert (await sandbox.git.status("repo")).is_clean
    await sandbox.files.write("repo/a.txt", "2\n")
    await sandbox.files.write("repo/new.txt", "n\n")
    status = await sandbox.git.status("repo")
    assert not status.is_clean
    assert {each.name for each in status.file_status} == {"a.txt", "new.txt"}
    await sandbox.git.add("repo", files=["new.txt"])
    await sandbox.git.restore("repo", ["new.txt"], staged=True)
    await sandbox.git.reset("repo", mode="hard")
    assert await sandbox.files.read("repo/a.txt") == "1\n"


@case("Git.create_branch")
async def branches(client: Client) -> None:
    """Branches are made, entered, listed and deleted."""
    sandbox = await repository(client)
    await sandbox.git.create_branch("repo", "side")
    assert set((await sandbox.git.branches("repo")).branches) == {"main", "side"}
    assert (await sandbox.git.branches("repo")).current_branch == "side"
    await sandbox.git.checkout_branch("repo", "main")
    await sandbox.git.delete_branch("repo", "side", force=True)
    assert (await sandbox.git.branches("repo")).branches == ["main"]


@case("Git.set_config")
async def configuration(client: Client) -> None:
    """Settings are kept where they are put."""
    sandbox = await repository(client)
    await sandbox.git.set_config("core.editor", "true", scope="local", path="repo")
    assert await sandbox.git.get_config("core.editor", scope="local", path="repo") == "true"
    assert await sandbox.git.get_config("user.name") == "Ann"
    assert await sandbox.git.get_config("no.such") is None


@case("Git.remote_add")
async def remotes(client: Client) -> None:
    """Commits are pushed to a remote and pulled from it; a remote is a directory here."""
    sandbox = await repository(client)
    await sandbox.git.init("bare.git", bare=True, initial_branch="main")
    await sandbox.git.remote_add("repo", "origin", "/home/user/bare.git")
    assert await sandbox.git.remote_get("repo", "origin") == "/home/user/bare.git"
    await sandbox.git.push("repo", remote="origin", branch="main")
    await sandbox.git.clone("/home/user/bare.git", path="other")
    await sandbox.git.commit("other", "more", allow_empty=True)
    await sandbox.git.push("other", remote="origin", branch="main")
    await sandbox.git.pull("repo", remote="origin", branch="main")
    assert "more" in (await sandbox.commands.run("git log --oneline", cwd="repo")).stdout


@case("Git.status")
async def no_repository(client: Client) -> None:
    """What is no repository is an error of git's."""
    sandbox = await client.create()
    async with raises("CommandExitException"):
        await sandbox.git.status("/tmp")
