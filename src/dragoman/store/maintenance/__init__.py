"""Maintenance of the store: heartbeats, failing abandoned responses, deleting old rows.

`tasks` decides when; it does not import SQLAlchemy, which takes long. `repository` has the queries.
"""
