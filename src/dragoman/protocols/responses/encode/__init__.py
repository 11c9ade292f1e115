"""Encode responses: events item by item, the resource, and replayed stored responses."""
