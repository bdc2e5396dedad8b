"""URLs as they may be shown: in errors, in logs, in a listing of what is configured."""

import re

_NAMED = re.compile(r"(?is)((?:password|passwd|pwd|secret|token|credentials?|key|auth)=)[^&\s]*")


def without_secrets(text: str) -> str:
    """Return a URL, or a sentence with one, without user, password and parameters that are secret.

    A password may hold what a URL cannot, unescaped: all up to the last @ is hidden, rather too much than too little.
    """
    before, slashes, after = text.partition(":/")
    user = after.rpartition("@")[0]
    if slashes and _NAMED.search(user):
        return f"{before}://(hidden)"  # whether the @ ends a user or belongs to a parameter, nobody knows
    host, at, parameters = after.rpartition("@")
    if slashes and at:
        text = f"{before}:/{'/' * (len(host) - len(host.lstrip('/')))}(hidden)@{parameters}"
    return _NAMED.sub(r"\1(hidden)", text)


def error_without_secrets(error: Exception, url: str) -> str:
    """Return what an error says of a URL, which it may quote."""
    return without_secrets(str(error).replace(url, without_secrets(url)))
