"""Ask the service of this container whether it answers; exit status 1 if not. For the HEALTHCHECK of the image.

The service is where its flags say, else the environment, else the file: as dpserve.configuration has it, which takes
longer to import than a health check should last.
"""

import os
import ssl
import sys
import tomllib
import urllib.request
from collections.abc import Sequence
from pathlib import Path

COMMAND = Path("/proc/1/cmdline")
"""The container's own command."""
ALL_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""Nobody can be asked at these; where the service listens on all, it answers on loopback."""


def live_url(words: Sequence[str]) -> str:
    """Return where the service started as `words` says that it lives. Raises OSError and ValueError for a bad file."""
    config = _flag(words, "config") or os.environ.get("DPSERVE_CONFIG")
    path = Path(config or f"{os.environ.get('DPSERVE_HOME', '/var/lib/dpserve')}/dpserve.toml")
    table = tomllib.loads(path.read_text("utf-8")).get("serve", {}) if config or path.exists() else {}

    def setting(name: str, default: str) -> str:
        said = _flag(words, name) or os.environ.get(f"DPSERVE_{name.upper().replace('-', '_')}")
        return str(said or table.get(name) or default)

    host = setting("host", "127.0.0.1")
    host = ALL_ADDRESSES.get(host, host)
    scheme = "https" if setting("tls-cert", "") else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{setting('port', '8000')}/livez"


def _flag(words: Sequence[str], name: str) -> str | None:
    """Return the last value of a flag, written with a blank or with `=`."""
    found = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == f"--{name}":
            found = following
        elif word.startswith(f"--{name}="):
            found = word.partition("=")[2]
    return found


def main() -> None:
    """Ask, and end with status 1 and a line where there is no good answer."""
    unchecked = ssl._create_unverified_context()  # noqa: S323  # the certificate names the service, not this address
    try:
        url = live_url(COMMAND.read_bytes().decode("utf-8", "replace").split("\0") if COMMAND.exists() else [])
        urllib.request.urlopen(url, timeout=4, context=unchecked).close()  # noqa: S310
    except (OSError, ValueError) as error:
        sys.exit(f"not healthy: {error}")


if __name__ == "__main__":
    main()
