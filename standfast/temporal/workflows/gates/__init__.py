"""Gates in workflows: of calls, of pipelines, and in users' own workflows."""
