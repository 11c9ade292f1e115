"""The APIs of upstream servers, one file each: five for token ids, two for text."""

from __future__ import annotations

from dragoman.engines.remote.protocols.api import UpstreamApi
from dragoman.engines.remote.protocols.chat_completions import ChatCompletionsApi
from dragoman.engines.remote.protocols.dragoman import DragomanApi
from dragoman.engines.remote.protocols.llama_server import LlamaServerApi
from dragoman.engines.remote.protocols.sglang import SglangApi
from dragoman.engines.remote.protocols.text_completions import TextCompletionsApi
from dragoman.engines.remote.protocols.vllm_completions import VllmCompletionsApi
from dragoman.engines.remote.protocols.vllm_generate import VllmGenerateApi
from dragoman.engines.remote.settings import Upstream
from dragoman.tokenizers.vocabulary import Vocabulary


def make_api(upstream: Upstream, vocabulary: Vocabulary) -> UpstreamApi:
    """Return the API that a server was found to have."""
    match upstream.protocol:
        case "llama-server":
            return LlamaServerApi(upstream, vocabulary)
        case "vllm-generate":
            return VllmGenerateApi(upstream, vocabulary)
        case "vllm-completions":
            return VllmCompletionsApi(upstream, vocabulary)
        case "dragoman":
            return DragomanApi(upstream)
        case "sglang":
            return SglangApi(upstream, vocabulary)
        case "text":
            return TextCompletionsApi(upstream)
        case "chat":
            return ChatCompletionsApi(upstream)
