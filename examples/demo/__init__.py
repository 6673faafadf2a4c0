"""A worker dies in the middle of a post, and an agent asks a person: the application with its own Temporal server.

    python -m examples.demo

Everything is on this machine and real but, without a key for one, the model.
"""
