"""The store for many machines at Cloudflare: D1, over HTTP or through a binding."""

from standfast.stores.d1.database import D1Binding
from standfast.stores.d1.store import D1Store, d1_store

__all__ = ["D1Binding", "D1Store", "d1_store"]
