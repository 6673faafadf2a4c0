"""The TLS context of HTTP clients."""

import ssl
from functools import lru_cache


@lru_cache(maxsize=1)
def tls_context() -> ssl.SSLContext:
    """Return the TLS context that all clients of a process share: reading the CA certificates blocks for 30 ms."""
    import httpx

    return httpx.create_ssl_context()
