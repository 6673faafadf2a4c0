"""Properties are checked with the same few examples each time, and nothing is stored between runs."""

from hypothesis import settings

settings.register_profile("unit", max_examples=60, deadline=None, database=None, derandomize=True)
settings.load_profile("unit")
