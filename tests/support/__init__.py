"""What tests share: agents, tools, drivers, servers, and words for what came of a run."""
