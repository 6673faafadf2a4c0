"""Models, providers and MCP servers."""
