"""The contexts of one sandbox, by id, and the default one of each language."""

from cellfork.engine.checks import check_envs, check_text
from cellfork.engine.contexts import Context, Host
from cellfork.engine.languages import DEFAULT_LANGUAGE, language_of
from cellfork.engine.requests import ErrorFactory
from cellfork.model import events
from cellfork.model.errors import NotFound, Unsupported
from cellfork.model.specs import ContextSpec


class Contexts:
    """Creates, finds and removes contexts.  All methods belong to the engine's event loop."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._contexts: dict[str, Context] = {}
        self._defaults: dict[str, Context] = {}

    async def create(self, spec: ContextSpec | None = None) -> Context:
        """Create a context and wait until its kernel is there.

        Raises :class:`Unsupported` for an unknown language, :class:`InvalidRequest` for a working directory
        that does not exist and for malformed variables, :class:`StartupFailed`, :class:`SandboxGone`.
        """
        self._host.check_running()
        context = self._add(spec or ContextSpec())
        try:
            await context.start()
            await self._host.save()
        except BaseException:
            if context.id in self._contexts:
                self.remove(context.id)
            raise
        return context

    def list(self) -> list[Context]:
        """Return the contexts in the order of their creation."""
        return list(self._contexts.values())

    def get(self, id: str) -> Context:
        """Return a context; :class:`NotFound` where there is none with this id."""
        context = self._contexts.get(id)
        if context is None:
            raise NotFound(f"no context {str(id)[:80]!r}")
        return context

    def default(self, language: str | None = None) -> Context:
        """Return the default context of a language, made where there is none yet."""
        name = language_of(language)
        context = self._defaults.get(name)
        if context is None:
            context = self._defaults[name] = self._add(ContextSpec(language=name))
            self._host.save()
        return context

    def is_default(self, context: Context) -> bool:
        """Tell whether a context is the default one of its language."""
        return self._defaults.get(context.language) is context

    def restore(self, id: str, spec: ContextSpec, *, default: bool) -> Context:
        """Have a context again that was there before this process."""
        context = Context(self._host, spec)
        context.id = id
        self._contexts[id] = context
        if default:
            self._defaults[spec.language] = context
        return context

    async def prepare(self, language: str | None) -> None:
        """Have the default context of a language and wait for its kernel; Python's needs no wait.

        Raises :class:`Unsupported` where the template does not have the language (no context stays behind then) and
        :class:`StartupFailed`.
        """
        if language_of(language) == DEFAULT_LANGUAGE:
            return
        self._host.check_running()
        context = self.default(language)
        try:
            await context.start()
        except Unsupported:
            if context.id in self._contexts:
                self.remove(context.id)
            raise

    async def restart(self, id: str) -> Context:
        """Replace a context's kernel; the id stays, the state is lost.  What runs or waits is ``Killed``."""
        self._host.check_running()
        context = self.get(id)
        await context.restart()
        return context

    def remove(self, id: str) -> None:
        """Remove a context.  What runs or waits is ``Killed``."""
        context = self.get(id)
        del self._contexts[id]
        if self._defaults.get(context.language) is context:
            del self._defaults[context.language]
        context.remove()
        self._host.save()

    def on_sandbox_end(self, reason: events.KillReason | None, message: str, error: ErrorFactory) -> None:
        """End everything in every context."""
        for context in self._contexts.values():
            context.on_sandbox_end(reason, message, error)

    def _add(self, spec: ContextSpec) -> Context:
        checked = ContextSpec(
            language=language_of(spec.language),
            cwd=check_text(spec.cwd, "the working directory"),
            envs=check_envs(spec.envs, self._host.settings.envs),
        )
        context = Context(self._host, checked)
        self._contexts[context.id] = context
        return context
