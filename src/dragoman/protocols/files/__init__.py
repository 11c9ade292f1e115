"""Files: OpenAI's `/v1/files`, which batches and content parts refer to.

multipart  parses the body of an upload as it arrives
decode     the fields of an upload
encode     a file, and pages of files
"""

from __future__ import annotations

from dragoman.protocols.dialect import Dialect
from dragoman.protocols.files.decode import (
    PURPOSES,
    FileUpload,
    UploadFields,
    clean_filename,
    decode_upload_fields,
)
from dragoman.protocols.files.encode import (
    FileInfo,
    FileObject,
    encode_deletion,
    encode_file,
    encode_file_list,
)
from dragoman.protocols.files.multipart import MultipartParser, PartData, PartStart, read_boundary
from dragoman.protocols.shared import openai

__all__ = [
    "DIALECT",
    "PURPOSES",
    "FileInfo",
    "FileObject",
    "FileUpload",
    "MultipartParser",
    "PartData",
    "PartStart",
    "UploadFields",
    "clean_filename",
    "decode_upload_fields",
    "encode_deletion",
    "encode_file",
    "encode_file_list",
    "read_boundary",
]

DIALECT: Dialect[object] = Dialect(name="files", encode_error=openai.encode_error)
