"""Routes of files.

OpenAI's and Anthropic's files have the same paths and are the same files. The wire API of a request
decides how its form is read and how files are described.
"""

from __future__ import annotations

from dragoman.errors import Forbidden, InvalidValue, UnsupportedMedia
from dragoman.files import FileService, Upload
from dragoman.http.asgi import RequestContext
from dragoman.http.body import is_from_other_site
from dragoman.http.router import Route, RouteGroup
from dragoman.http.routes.shared.context import RouteContext
from dragoman.http.routes.shared.paging import read_paging
from dragoman.protocols import files, messages
from dragoman.protocols.files import (
    DIALECT,
    FileInfo,
    FileObject,
    FileUpload,
    MultipartParser,
    PartData,
    PartStart,
)
from dragoman.protocols.messages import file_list
from dragoman.protocols.shared.json_body import make_missing_field_error
from dragoman.store.batches.rows import StoredFile
from dragoman.store.rows import Page

FORM = "multipart/form-data"
MAX_PAGE = 10_000
MAX_FIELD = 4096  # bytes of a field that is not the file
MAX_FORM = 1 << 20  # bytes of a form besides the file


class FileHandlers:
    """Handlers over the file service."""

    def __init__(self, context: RouteContext) -> None:
        self._files: FileService = context.runtime.files
        self._settings = context.runtime.settings

    async def create(self, request: RequestContext) -> None:
        content_type = request.get_header_text("content-type") or ""
        if content_type.partition(";")[0].strip().lower() != FORM:
            raise UnsupportedMedia(f"Set `Content-Type: {FORM}`.")
        request.refuse_compressed_body()
        if is_from_other_site(request):  # a browser sends a form without asking the server first
            raise Forbidden("Files cannot be uploaded from pages of other origins.")
        length = request.headers.get(b"content-length") or b""
        if length.isdigit() and int(length[:20]) > self._files.limits.file + MAX_FORM:
            raise self._files.limits.make_size_error()
        parser = MultipartParser(files.read_boundary(content_type))
        async with self._files.upload(request.owner) as upload:
            form = UploadForm(upload)
            async for chunk in request.receive_chunks(self._settings.receive_timeout):
                for event in parser.feed(chunk):
                    await form.add(event)
            parser.finish()
            row = await form.finish(request, self._settings.strict_params)
        await self._send_file(request, row)

    async def _send_file(self, request: RequestContext, row: StoredFile) -> None:
        encode = file_list.encode_file if is_anthropic(request) else files.encode_file
        await request.send_response(200, encode(_describe(row)))

    async def list(self, request: RequestContext) -> None:
        if is_anthropic(request):
            cursor, purpose = file_list.get_cursor(request.query), None
            sizes, encode = (
                (file_list.DEFAULT_LIMIT, file_list.MAX_LIMIT),
                file_list.encode_file_page,
            )
        else:
            cursor, purpose = request.query.get("after"), request.query.get("purpose")
            sizes, encode = (MAX_PAGE, MAX_PAGE), files.encode_file_list
        limit, newest_first = read_paging(request, default=sizes[0], maximum=sizes[1])
        page = Page(after=cursor, limit=limit + 1, newest_first=newest_first)
        rows = await self._files.list_page(request.owner, page, purpose)
        infos = [_describe(row) for row in rows[:limit]]
        await request.send_response(200, encode(infos, len(rows) > limit))

    async def get(self, request: RequestContext) -> None:
        await self._send_file(request, await self._files.get(request.owner, request.params["id"]))

    async def get_content(self, request: RequestContext) -> None:
        row = await self._files.get(request.owner, request.params["id"])
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-disposition", b"attachment"),
            (b"x-content-type-options", b"nosniff"),
        ]
        await request.send_chunks(self._files.read_chunks(row.id), row.bytes, headers)

    async def delete(self, request: RequestContext) -> None:
        file = request.params["id"]
        await self._files.delete(request.owner, file)
        encode = file_list.encode_deletion if is_anthropic(request) else files.encode_deletion
        await request.send_response(200, encode(file))


class UploadForm:
    """A form that is being received: its fields, and its file."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._fields: dict[str, bytes] = {}
        self._current = ""  # the name of the part that is being received
        self._filename: str | None = None  # once the file has begun

    async def add(self, event: PartStart | PartData) -> None:
        if isinstance(event, PartStart):
            self._start_part(event)
        elif self._current == "file":
            await self._upload.write(event.data)
        else:
            value = self._fields[self._current] + event.data
            if len(value) > MAX_FIELD:
                name = self._current[:64]
                raise InvalidValue(f"`{name}` is longer than {MAX_FIELD} bytes.", param=name)
            self._fields[self._current] = value

    def _start_part(self, part: PartStart) -> None:
        name = self._current = part.name
        if name in self._fields or (name == "file" and self._filename is not None):
            raise InvalidValue(f"The form has `{name[:64]}` more than once.", param=name[:64])
        if name == "file":
            self._filename = files.clean_filename(part.filename)
        else:
            self._fields[name] = b""

    async def finish(self, request: RequestContext, strict: bool) -> StoredFile:
        """Store the file, once all of the form has arrived."""
        texts = {name: value.decode("utf-8", "replace") for name, value in self._fields.items()}
        anthropic = is_anthropic(request)
        decode = file_list.decode_file_upload if anthropic else files.decode_upload_fields
        fields = decode(texts, strict)
        if self._filename is None:
            raise make_missing_field_error("file")
        request.warnings += fields.warnings
        row = await self._upload.finish(self._filename, fields.purpose, fields.seconds)
        if fields.seconds is not None and row.expires < row.created + fields.seconds - 1:
            request.warnings.append(
                f"`{fields.seconds_field}`: files are stored for at most "
                f"{row.expires - row.created:.0f} seconds."
            )
        return row


def is_anthropic(request: RequestContext) -> bool:
    return request.dialect is messages.DIALECT


def _describe(row: StoredFile) -> FileInfo:
    return FileInfo(row.id, row.filename, row.purpose, row.bytes, row.created, row.expires)


def make_routes(context: RouteContext) -> list[Route]:
    handlers = FileHandlers(context)
    group = RouteGroup("/v1/files", DIALECT, messages.DIALECT)
    return [
        group.make(
            "POST",
            "",
            handlers.create,
            "Upload a file.",
            request_type=FileUpload,
            body_type=FORM,
            response_type=FileObject,
        ),
        group.make("GET", "", handlers.list, "List files."),
        group.make("GET", "/{id}", handlers.get, "Get a file.", response_type=FileObject),
        group.make("GET", "/{id}/content", handlers.get_content, "Download a file."),
        group.make("DELETE", "/{id}", handlers.delete, "Delete a file."),
    ]
