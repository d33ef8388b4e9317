"""Errors → what the control plane answers: ``{"code": status, "message": ...}``, and ``error_code`` where upstream has one.

E2B's JavaScript SDK looks at ``code`` in the body, the Python one at the status: both are always the same number.
"""

from typing import Any

from cellfork.dialects.asgi import Headers
from cellfork.dialects.statuses import BUG, message_of, status_of
from cellfork.model import errors

CREATE_FAILED = "sandbox_create_failed"
CREATE_REFUSED = "sandbox_create_refused"
OTHER_BODY = "idempotency_request_mismatch"
GUEST_SILENT = "sandbox_snapshot_guest_agent_unresponsive"

NO_RETRY: Headers = ((b"should-retry", b"false"),)
"""Told with a refusal whose status E2B's SDKs would otherwise try again."""


class Refusal(Exception):
    """An answer other than success, in the words of this dialect."""

    def __init__(
        self, status: int, message: str, error_code: str | None = None, headers: Headers = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code
        self.headers = headers


def bad(message: str) -> Refusal:
    """Return the refusal of a request that is wrong, or that this server cannot honour."""
    return Refusal(400, message)


def missing(id: str) -> Refusal:
    """Return the answer for a sandbox that does not exist, has ended or belongs to somebody else."""
    return Refusal(404, f"Sandbox \"{id[:80]}\" doesn't exist or you don't have access to it")


def refusal_of(error: Exception) -> Refusal:
    """Return what a client is told about an error.  A bug tells nothing of our insides."""
    match error:
        case Refusal():
            return error
        case errors.SandboxGone():
            return Refusal(404, f"the sandbox has ended: {error}")
        case errors.LimitExceeded():  # of the request itself; places are told apart where they are held
            return Refusal(400, str(error))
        case errors.IsolationUnavailable():  # what is missing will be missing next time as well
            return Refusal(500, str(error), CREATE_REFUSED, NO_RETRY)
        case errors.StartupFailed():
            return Refusal(503, str(error), CREATE_FAILED)
    return Refusal(status_of(error), message_of(error))


def body_of(refusal: Refusal) -> dict[str, Any]:
    """Return the body of a refusal."""
    body: dict[str, Any] = {"code": refusal.status, "message": str(refusal)}
    if refusal.error_code is not None:
        body["error_code"] = refusal.error_code
    return body


def is_bug(refusal: Refusal) -> bool:
    """Tell whether this is the answer for an error that nobody but us is to blame for."""
    return str(refusal) == BUG
