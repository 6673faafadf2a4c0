"""Activities that run tools: attempts, toolsets, dependencies, and agents that a tool invokes."""
