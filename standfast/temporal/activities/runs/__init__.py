"""Activities around a run: hooks, steps of pipelines, its end, its rows on the board."""
