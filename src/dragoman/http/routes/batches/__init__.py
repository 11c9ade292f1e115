"""Routes of files and batches.

files         the files that clients upload
batches       the batches over such files
line_sender   sends the lines of a batch to the routes of their endpoint
"""
