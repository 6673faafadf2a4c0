"""Properties are checked on the same few examples every time, and nothing is kept between runs."""

from hypothesis import settings

settings.register_profile("unit", max_examples=60, deadline=None, database=None, derandomize=True)
settings.load_profile("unit")
