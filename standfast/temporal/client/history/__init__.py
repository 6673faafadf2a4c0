"""A run's history read from outside: events, live streams, replays, the audit trail."""
