"""Tools of MCP servers. The SDK is imported when an agent first needs a server, never before."""
