"""Tools that are not the client's: remote servers that speak MCP."""
