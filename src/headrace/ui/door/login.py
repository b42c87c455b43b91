"""The login page: one form, no script, nothing fetched."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from html import escape
from math import ceil

from starlette.responses import HTMLResponse

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; display: grid; place-items: center;
  min-height: 90vh; margin: 0 16px; background: light-dark(#f6f7f9, #14171a);
  color: light-dark(#1c2126, #e6e9ec); }
form { width: min(360px, 100%); display: grid; gap: 12px; }
h1 { font-size: 22px; margin: 0; }
p { margin: 0; }
input, button { font: inherit; padding: 10px 12px; border-radius: 8px;
  border: 1px solid light-dark(#8a939c, #717b85); }
button { background: #0b62a8; color: #fff; border-color: #0b62a8; cursor: pointer; }
[role=alert] { border-left: 4px solid #d4541a; padding-left: 10px; }
"""
_STYLE_HASH = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
LOGIN_CSP = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Headrace: log in</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><style>{style}</style></head>
<body><main><form method="post" action="{prefix}/login" autocomplete="on">
<h1>Headrace</h1>
<p>This server wants an API key. It stays in the dashboard's memory for this session.</p>
{problem}<input type="hidden" name="next" value="{target}">
<input type="text" name="username" value="headrace" autocomplete="username" hidden>
<label for="key">API key</label>
<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>
<button type="submit">Log in</button>
</form></main></body></html>
"""


def login_page(
    target: str, prefix: str, problem: str = "", status: int = 200, retry_after_s: float = 0.0
) -> HTMLResponse:
    """The form. target: the page that a login leads to; problem: why the last try failed."""
    headers = {"content-security-policy": LOGIN_CSP, "cache-control": "no-store"}
    if retry_after_s:
        headers["retry-after"] = str(ceil(retry_after_s))
    return HTMLResponse(
        _PAGE.format(
            style=_STYLE,
            prefix=escape(prefix),
            target=escape(target.removeprefix(prefix)),
            problem=f'<p role="alert">{escape(problem)}</p>\n' if problem else "",
        ),
        status,
        headers=headers,
    )
