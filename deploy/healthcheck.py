"""Ask the service of this container whether it answers; exit status 1 if not. For the HEALTHCHECK of the image."""

import os
import ssl
import sys
import urllib.request

port = os.environ.get("DPSERVE_PORT", "8000")
scheme = "https" if os.environ.get("DPSERVE_TLS_CERT") else "http"
unchecked = ssl._create_unverified_context()  # noqa: S323  # the certificate names the service, not the loopback address
try:
    urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}/livez", timeout=4, context=unchecked).close()  # noqa: S310
except OSError as error:
    sys.exit(f"not healthy: {error}")
