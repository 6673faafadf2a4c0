"""Programs that show holdfast at work; `python -m examples.demo` is what `make demo` runs."""
