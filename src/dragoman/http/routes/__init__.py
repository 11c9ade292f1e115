"""The routes of the server, one module per wire API.

Every module has a function `make_routes` that takes a `RouteContext` and returns its routes.
"""
