"""What several route files use.

context      the services that handlers get
generation   the handler of routes that generate
paging       the query fields that select a page of a list
readiness    whether the server is ready for requests
"""
