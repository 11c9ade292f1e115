"""How single values are written in JSON, and how they avoid the markers of a format."""
