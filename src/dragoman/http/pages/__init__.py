"""Pages for people and tools: the OpenAPI document and a page that shows it."""
