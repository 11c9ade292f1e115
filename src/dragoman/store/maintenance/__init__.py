"""Maintenance of the store: heartbeats, failing abandoned responses, deleting old rows.

`tasks` schedules them, without importing SQLAlchemy, which is slow; `repository` has the queries.
"""
