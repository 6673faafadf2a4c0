"""The pages: inbox, lists, a run, and the forms by which people start, decide, answer and repair."""
