"""Every way a request can fail: the status, type and code that clients get.

    DragomanError
    ├── BadRequest              400  the client's fault; `param` names the field
    │   ├── Unsupported         400  known, but this model or server does not support it
    │   ├── ContextOverflow     400  the prompt is too long
    │   ├── TemplateRejected    400  the model's chat template rejects the conversation
    │   └── …                   400  one class for each other code
    ├── Unauthorized            401
    ├── Forbidden               403
    ├── NotFound                404  unknown path
    │   └── ModelNotFound, …    404
    ├── MethodNotAllowed        405
    ├── RequestTimeout          408
    ├── TooLarge                413
    ├── UnsupportedMedia        415
    ├── PoisonRequest           422  the engine died twice while it processed the request
    ├── Overloaded              429  the queue is full or a limit of the key, with Retry-After
    │   ├── ExceedsLimit        429  larger than a limit of the key: trying again does not help
    │   └── TooManyCrashes      429  requests of the key crashed the engine again and again
    ├── HeadersTooLarge         431
    ├── EngineFailed            500  the engine failed while processing the request
    ├── ModelBroken             500  the model's file cannot be loaded, and why
    ├── DeadlineExceeded        504  not finished within the time limit of the request
    └── Unavailable             503  with Retry-After
        ├── ModelLoading        503
        ├── EngineDown          503
        ├── OutOfMemory         503
        ├── StoreUnavailable    503
        ├── TooManyConnections  503
        └── Draining            503

A message is written for the person who reads it. It never contains a path, an address, a class name
or a traceback; the messages of engines and libraries go to the log. Errors cross a process boundary
as `SerializedError`, never pickled.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

MAX_MESSAGE = 1000  # characters
MAX_ID = 80  # characters of an id in a message
ENGINE_FAILURE = "The engine failed while processing this request."
ENGINE_STOPPED = "The engine has been stopped."
ENGINE_ENDED_EARLY = "The engine stopped before the answer was finished."


def shorten_id(text: str) -> str:
    """Shorten an id that a client sent, for a message that quotes it."""
    return text[:MAX_ID]


class DragomanError(Exception):
    """Base class of all errors that clients get."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        if len(message) > MAX_MESSAGE:  # it quotes what the client sent
            message = message[:MAX_MESSAGE] + "…"
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after
        if code is not None:
            self.code = code


class BadRequest(DragomanError):
    status = 400
    type = "invalid_request_error"


class Unsupported(BadRequest):
    code = "unsupported_parameter"


class ContextOverflow(BadRequest):
    code = "context_length_exceeded"


class MissingParameter(BadRequest):
    code = "missing_required_parameter"


class UnknownParameter(BadRequest):
    code = "unknown_parameter"


class InvalidType(BadRequest):
    code = "invalid_type"


class InvalidValue(BadRequest):
    code = "invalid_value"


class InvalidJson(BadRequest):
    code = "invalid_json"


class InvalidHost(BadRequest):
    code = "bad_host"


class InvalidHttp(BadRequest):
    code = "bad_http"


class MutuallyExclusive(BadRequest):
    code = "mutually_exclusive_parameters"


class InvalidSchema(BadRequest):
    code = "invalid_schema"


class SchemaTooComplex(BadRequest):
    code = "schema_too_complex"


class UnsupportedKeyword(BadRequest):
    code = "unsupported_keyword"


class InvalidGrammar(BadRequest):
    code = "invalid_grammar"


class ConstraintTooComplex(BadRequest):
    code = "constraint_too_complex"


class InvalidMedia(BadRequest):
    """A picture, sound or file; docs/media.md lists the codes."""

    code = "invalid_image"


class FileInUse(BadRequest):
    code = "file_in_use"


class AdapterNotFound(BadRequest):
    code = "adapter_not_found"


class PreviousResponseNotFound(BadRequest):
    code = "previous_response_not_found"


class PreviousResponseNotFinished(BadRequest):
    code = "previous_response_not_finished"


class UnknownItem(BadRequest):
    """A request refers to an item that does not exist."""

    code = "item_not_found"


class DuplicateItem(BadRequest):
    code = "duplicate_item"


class TemplateRejected(BadRequest):
    code = "template_rejected"


class TemplateTooCostly(TemplateRejected):
    code = "template_too_costly"


class Unauthorized(DragomanError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(DragomanError):
    status = 403
    type = "permission_error"
    code = "forbidden"


class NotFound(DragomanError):
    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"


class ConversationNotFound(NotFound):
    code = "conversation_not_found"


class ItemNotFound(NotFound):
    """The URL names an item that does not exist."""

    code = "item_not_found"


class MethodNotAllowed(DragomanError):
    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class RequestTimeout(DragomanError):
    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class TooLarge(DragomanError):
    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class QuotaExceeded(TooLarge):
    code = "quota_exceeded"


class UnsupportedMedia(DragomanError):
    status = 415
    type = "invalid_request_error"
    code = "unsupported_media_type"


class PoisonRequest(DragomanError):
    """The engine died each time it processed this request."""

    status = 422
    type = "invalid_request_error"
    code = "poison_request"


class HeadersTooLarge(DragomanError):
    status = 431
    type = "invalid_request_error"
    code = "headers_too_large"


class Overloaded(DragomanError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class ExceedsLimit(Overloaded):
    """A request that no waiting would fit into a limit."""


class TooManyCrashes(Overloaded):
    """Requests of one owner crashed the engine again and again; other owners are served."""

    code = "too_many_crashes"


class EngineFailed(DragomanError):
    code = "engine_error"


class ModelBroken(DragomanError):
    code = "model_broken"


class DeadlineExceeded(DragomanError):
    status = 504
    type = "timeout_error"
    code = "deadline_exceeded"


class Unavailable(DragomanError):
    status = 503
    type = "service_unavailable"
    code = "service_unavailable"


class ModelLoading(Unavailable):
    code = "model_loading"


class EngineDown(Unavailable):
    code = "engine_down"


class OutOfMemory(Unavailable):
    code = "out_of_memory"


class Draining(Unavailable):
    code = "draining"


class StoreUnavailable(Unavailable):
    code = "store_unavailable"


class TooManyConnections(Unavailable):
    code = "too_many_connections"


class ResponseCancelled(DragomanError):
    """The client cancelled a response in the background."""

    code = "cancelled"


class StartupError(Exception):
    """The server cannot start. The message is shown to the operator as it is.

    It names settings as flags, since most servers are started by the command line.
    """


class SerializedError(Struct, frozen=True, array_like=True):
    """An error as data, which crosses process boundaries."""

    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None


def _collect_subclasses(base: type[DragomanError]) -> dict[str, type[DragomanError]]:
    classes = {base.__name__: base}
    for child in base.__subclasses__():
        classes |= _collect_subclasses(child)
    return classes


ERROR_CLASSES = _collect_subclasses(DragomanError)


def serialize_error(error: BaseException) -> SerializedError:
    """Turn an error into data. Any other exception becomes an engine failure without details."""
    if isinstance(error, DragomanError):
        return SerializedError(
            type(error).__name__, error.message, error.param, error.code, error.retry_after
        )
    return serialize_error(convert_engine_exception(error))


def convert_engine_exception(error: BaseException) -> DragomanError:
    """Return what clients learn of an exception that is not ours: nothing but its kind.

    Memory may be free again for the next request. GPU libraries have no common exception for it.
    """
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return OutOfMemory("The engine has too little memory for this request.", retry_after=1)
    return EngineFailed(ENGINE_FAILURE)


def deserialize_error(data: SerializedError) -> DragomanError:
    kind = ERROR_CLASSES.get(data.kind, EngineFailed)
    return kind(data.message, param=data.param, code=data.code, retry_after=data.retry_after)
