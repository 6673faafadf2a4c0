"""Runs from outside: their progress and end, whose they are, decisions, resumes, stuck ones."""
