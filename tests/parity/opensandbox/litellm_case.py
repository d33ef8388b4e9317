"""LiteLLM executes code through a server with nothing but configuration; run in an environment that has ``litellm``.

``OPEN_SANDBOX_API_BASE`` and ``OPEN_SANDBOX_API_KEY`` are all that it is told.
"""

import asyncio
import importlib.metadata

from litellm.sandbox import main as sandbox

PROVIDER = "opensandbox"


async def main() -> None:
    """Run code at once, and step by step; raise where anything is not as it should be."""
    ran = await sandbox.acode_interpreter_tool(provider=PROVIDER, code="print('hello')\n6 * 7")
    assert (ran.stdout, ran.error, ran.execution_count) == ("hello\n", None, 1), ran
    assert ran.results[0]["text"] == "42", ran.results
    container = await sandbox.acreate_sandbox(provider=PROVIDER)
    try:
        await sandbox.arun_code(provider=PROVIDER, container=container, code="x = 1")
        ran = await sandbox.arun_code(provider=PROVIDER, container=container, code="x / 0")
        assert ran.error["name"] == "ZeroDivisionError", ran.error
        again = await sandbox.arun_code(provider=PROVIDER, container=container.id, code="print(x)")
        assert again.stdout == "1\n", again
        plot = "import matplotlib.pyplot as p; p.plot([1, 2]); p.show()"
        shown = await sandbox.arun_code(provider=PROVIDER, container=container, code=plot)
        assert any("image/png" in result for result in shown.results), [[*result] for result in shown.results]
    finally:
        assert await sandbox.adelete_sandbox(provider=PROVIDER, container=container)
    assert not await sandbox.adelete_sandbox(provider=PROVIDER, container=container)
    print(f"LiteLLM {importlib.metadata.version('litellm')} ran code", flush=True)


asyncio.run(main())
