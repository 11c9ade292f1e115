"""Persistent state in a database: responses and their events, conversations, chat completions.

`Store` is what the rest of the server uses. It runs a function with a `Transaction` in a thread of
its own (`executor`, `database`); a transaction has one repository per kind of row. `maintenance`
deletes old rows and fails the responses of dead servers. `tables` and `migrations` define the
schema; `rows` has the data types.

To add a table: define it in `tables`, create it in `migrations`, write a repository, and add the
repository to `transaction`.
"""
