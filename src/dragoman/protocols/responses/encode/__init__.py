"""Encode responses: events item by item, the resource, and stored responses again."""
