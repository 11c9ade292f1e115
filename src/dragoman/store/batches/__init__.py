"""Files that clients upload, and batches of requests that are read from files.

files     the files with their content, in chunks
batches   the batches, which server runs each of them, and the results of their lines
rows      the data types

The content of a file is in the database, not in the file system: so it is written and deleted with
its row, every server of the database can read it, and one limit covers all that an owner stores.
"""
