"""Task queues from outside: their stores, a server for development, retention."""
