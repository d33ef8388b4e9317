"""Who may connect to a port of a sandbox: whoever knows its id, or with ``secureAccess`` whoever has its token as well.

A token can be lent: ``port-until-signature`` opens one port until a time, and says nothing of the token itself.
"""

import hashlib
import hmac
from typing import Final

from cellfork.dialects.keeping import is_token

ACCESS_HEADER: Final = "OpenSandbox-Secure-Access"
EGRESS_HEADER: Final = "OPENSANDBOX-EGRESS-AUTH"


def signed(token: str, port: int, until: int) -> str:
    """Return what opens one port of a sandbox until a Unix time."""
    told = f"{port}-{until}"
    return f"{told}-{_signature(token, told)}"


def may_enter(token: str | None, presented: str | None, port: int, now: float) -> bool:
    """Tell whether what was presented opens a port now.  In constant time."""
    if token is None or is_token(token, presented):
        return True
    told, _dash, signature = (presented or "").rpartition("-")
    if not is_token(_signature(token, told), signature):
        return False
    for_port, _dash, until = told.partition("-")
    return for_port == str(port) and now < int(until)


def _signature(token: str, told: str) -> str:
    return hmac.new(token.encode(), told.encode(errors="replace"), hashlib.sha256).hexdigest()
