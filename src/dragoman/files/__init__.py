"""Files that clients upload: limits, uploads as they arrive, reading, deleting.

`FileService` is the only way to a file; every method takes the owner, and a file of another owner
does not exist. The content is in the store (`store.batches`).
"""

from dragoman.files.service import FileService as FileService
from dragoman.files.upload import FileLimits as FileLimits
from dragoman.files.upload import Upload as Upload
