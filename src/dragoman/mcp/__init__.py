"""Remote tools: a client for servers of the Model Context Protocol (MCP).

`client` holds one `session` per server; `transport` sends its requests, only to addresses that
`url_guard` allows; `results` converts tools and results. `types` is all that other packages need.

This package is not the library `mcp`, which `session` imports.
"""
