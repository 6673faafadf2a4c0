"""Programs that show standfast at work; `python -m examples.demo` is what `make demo` runs."""
