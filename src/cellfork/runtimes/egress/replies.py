"""What the proxy itself answers: short, plain, with the reason where programs show it."""

from cellfork.runtimes.egress.heads import encode

PHRASES = {
    400: "Bad Request", 403: "Forbidden", 405: "Method Not Allowed", 407: "Proxy Authentication Required", 408: "Request Timeout",
    414: "URI Too Long", 431: "Request Header Fields Too Large", 502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
MAX_REASON = 160


def reply(status: int, message: str, brief: str = "", *, with_body: bool = True) -> bytes:
    """Return a response that says ``message`` in its body and ``brief`` in its status line.

    Programs that open a tunnel (pip, curl) show the status line and nothing else.
    """
    body = f"cellfork: {message}\n".encode()
    fields = [
        ("Content-Type", "text/plain; charset=utf-8"),
        ("Content-Length", str(len(body))),
        ("X-Cellfork-Reason", printable(brief or message)),
        ("Connection", "close"),
    ]
    if status == 407:
        fields.append(("Proxy-Authenticate", 'Basic realm="cellfork"'))
    phrase = f"{PHRASES[status]} by cellfork: {printable(brief)}" if brief else PHRASES[status]
    return encode(f"HTTP/1.1 {status} {phrase}".encode("ascii"), fields) + (body if with_body else b"")


def printable(text: str) -> str:
    """Return ``text`` as printable ASCII of bounded length: it may hold what a sandbox wrote."""
    clean = "".join(letter if " " <= letter <= "~" else "?" for letter in text[: MAX_REASON + 1])
    return clean if len(clean) <= MAX_REASON else clean[: MAX_REASON - 3] + "..."
