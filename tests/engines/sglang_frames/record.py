"""Records the frames that SGLang's own code writes, of both stream kinds, without a GPU.

SGLang's HTTP route, tokenizer manager, detokenizer and the output stage of its scheduler run as
they are; the loop of the scheduler is replaced by one that runs the model with transformers on the
CPU. Packages of GPU kernels that SGLang imports are replaced by empty modules.

In an environment with torch for the CPU, transformers, xgrammar and fastapi (`make test-vllm`
installs one in .vllm):

    pip install --no-deps --target EXTRA sglang==0.5.23 orjson pybase64 xxhash zstandard \\
        setproctitle pyzmq python-multipart easydict
    PYTHONPATH=EXTRA python tests/engines/sglang_frames/record.py MODEL cumulative
    PYTHONPATH=EXTRA python tests/engines/sglang_frames/record.py MODEL incremental

MODEL is a directory with SmolLM2-135M-Instruct. Each body is written as it came to
`CASE.KIND.txt` here. Recorded on 2026-11-16 with SGLang 0.5.23.
"""

from __future__ import annotations

import http.client
import importlib.abc
import importlib.machinery
import json
import os
import sys
import threading
import time
import types
from array import array
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

FOLDER = Path(__file__).parent
GPU_PACKAGES = frozenset(
    {
        "IPython",
        "compressed_tensors",
        "cuda",
        "deep_ep",
        "flash_attn",
        "flashinfer",
        "gguf",
        "pynvml",
        "sgl_kernel",
        "soundfile",
        "torch_memory_saver",
        "torchaudio",
        "torchcodec",
        "torchvision",
        "triton",
        "tvm_ffi",
    }
)
PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
EMOJI = "<|im_start|>user\nRepeat: 🦙 naïve 你好<|im_end|>\n<|im_start|>assistant\n🦙"
LOGPROBS = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": -1}
CASES: dict[str, dict[str, Any]] = {
    "logprobs": {"prompt": PROMPT, **LOGPROBS, "sampling_params": {"max_new_tokens": 20}},
    "length": {"prompt": EMOJI, "sampling_params": {"max_new_tokens": 7}},
    "stop": {"prompt": PROMPT, "sampling_params": {"max_new_tokens": 20, "stop_token_ids": [30]}},
    "abort": {"prompt": PROMPT, "sampling_params": {"max_new_tokens": 20}},
    "too-long": {"input_ids": [504] * 9000, "sampling_params": {"max_new_tokens": 20}},
}
GROUPS = (1, 1, 2, 1, 3)  # tokens of a frame, in turn
ABORT_AFTER = 3  # tokens, in the case `abort`


class EmptyClass(type):
    """A class of a module that is not installed."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()

    def __getitem__(cls, key: object) -> EmptyClass:
        return cls

    def __or__(cls, other: object) -> Any:
        return cls

    __ror__ = __or__


class EmptyModule(types.ModuleType):
    """A module that is not installed; it has every name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = EmptyClass(name, (), {}) if name[0].isupper() else MagicMock()
        setattr(self, name, value)
        return value


class EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of GPU packages, all of them empty."""

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        if name.partition(".")[0] in GPU_PACKAGES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return EmptyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing in it."""


import transformers  # noqa: E402
import xgrammar  # noqa: E402, F401
from transformers import AutoModelForCausalLM, AutoProcessor  # noqa: E402, F401

sys.meta_path.insert(0, EmptyModules())  # after those that look for installed packages

import torch  # noqa: E402
import uvicorn  # noqa: E402
import zmq  # noqa: E402
from sglang.srt.disaggregation.utils import DisaggregationMode  # noqa: E402
from sglang.srt.entrypoints import http_server  # noqa: E402
from sglang.srt.managers.detokenizer_manager import DetokenizerManager  # noqa: E402
from sglang.srt.managers.io_struct import (  # noqa: E402
    TokenizedGenerateReqInput,
    sock_recv,
    sock_send,
)
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req  # noqa: E402
from sglang.srt.managers.scheduler_components import output_streamer  # noqa: E402
from sglang.srt.managers.tokenizer_manager import TokenizerManager  # noqa: E402
from sglang.srt.runtime_context import publish  # noqa: E402
from sglang.srt.server_args import PortArgs, ServerArgs  # noqa: E402
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # noqa: E402


class ModelScheduler(threading.Thread):
    """Takes the place of SGLang's scheduler: one request at a time, on the CPU."""

    def __init__(self, model: str, ports: Any, tokenizer: Any) -> None:
        super().__init__(daemon=True)
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._tokenizer = tokenizer
        torch.set_num_threads(1)
        context = zmq.Context.instance()
        self._requests = context.socket(zmq.PULL)
        self._requests.connect(ports.scheduler_input_ipc_name)
        self._outputs = context.socket(zmq.PUSH)
        self._outputs.connect(ports.detokenizer_ipc_name)
        self.aborts = False  # whether the next request is aborted in the middle

    def run(self) -> None:
        while True:
            message = sock_recv(self._requests)
            if isinstance(message, TokenizedGenerateReqInput):
                self._generate(message)

    def _generate(self, message: Any) -> None:
        params = message.sampling_params
        params.normalize(self._tokenizer)
        req = Req(
            message.rid,
            message.input_text,
            array("q", message.input_ids),
            params,
            message.return_logprob,
            message.top_logprobs_num,
            stream=message.stream,
            eos_token_ids={self._tokenizer.eos_token_id},
            vocab_size=self._model.config.vocab_size,
        )
        req.tokenizer = self._tokenizer
        frame = 0
        while not req.finished():
            for _ in range(GROUPS[frame % len(GROUPS)]):
                self._add_token(req, message.top_logprobs_num)
                if req.finished():
                    break
            self._send(req)
            frame += 1
            time.sleep(0.1)  # so that frames are not joined

    def _add_token(self, req: Any, top: int) -> None:
        with torch.no_grad():
            ids = torch.tensor([[*req.origin_input_ids, *req.output_ids]])
            scores = self._model(ids).logits[0, -1].log_softmax(-1)
        token = int(scores.argmax())
        req.output_ids.append(token)
        if req.return_logprob:
            best = scores.topk(top)
            logprob = req.logprob
            if req.logprob.input_token_logprobs_val is None:
                logprob.input_token_logprobs_val = logprob.input_token_logprobs_idx = []
                logprob.input_top_logprobs_val = logprob.input_top_logprobs_idx = []
                logprob.input_token_ids_logprobs_val = logprob.input_token_ids_logprobs_idx = []
            logprob.output_token_logprobs_val.append(float(scores[token]))
            logprob.output_token_logprobs_idx.append(token)
            logprob.output_top_logprobs_val.append(best.values.tolist())
            logprob.output_top_logprobs_idx.append(best.indices.tolist())
        if self.aborts and len(req.output_ids) >= ABORT_AFTER:
            req.finished_reason = FINISH_ABORT(
                "The request was aborted.", 503, "ServiceUnavailable"
            )
        else:
            req.update_finish_state()

    def _send(self, req: Any) -> None:
        part = output_streamer._GenerationStreamAccumulator(
            return_logprob=req.return_logprob,
            return_hidden_states=False,
            return_routed_experts=False,
            return_indexer_topk=False,
            spec_algorithm=SpeculativeAlgorithm.NONE,
            disaggregation_mode=DisaggregationMode.NULL,
            default_stream_interval=1,
            default_force_stream_interval=50,
            get_cached_tokens_details=lambda req: None,
            is_request_level_customized_info_key=lambda key: False,
            current_weight_version="default",
        )
        part.accept(req=req)
        payload = part.to_payload(dp_rank=0, is_idle_batch=False)
        if payload is not None:
            sock_send(self._outputs, payload)


def start_server(model: str, kind: str) -> tuple[ModelScheduler, int]:
    args = ServerArgs(
        model_path=model,
        device="cpu",
        attention_backend="torch_native",
        disable_cuda_graph=True,
        incremental_streaming_output=kind == "incremental",
    )
    publish(args, role="tokenizer")
    ports = PortArgs.init_new(args)
    manager = TokenizerManager(args, ports)
    manager.max_req_input_len = 4000
    scheduler = ModelScheduler(model, ports, manager.tokenizer)
    scheduler.start()
    detokenizer = DetokenizerManager(args, ports)
    threading.Thread(target=detokenizer.event_loop, daemon=True).start()
    http_server.set_global_state(http_server._GlobalState(manager, MagicMock(), {}))
    config = uvicorn.Config(http_server.app, port=0, lifespan="off", log_level="warning")
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.05)
    return scheduler, server.servers[0].sockets[0].getsockname()[1]


def main(model: str, kind: str) -> None:
    scheduler, port = start_server(model, kind)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    for name, case in CASES.items():
        body = {key: value for key, value in case.items() if key != "prompt"}
        if "prompt" in case:
            body["input_ids"] = tokenizer.encode(case["prompt"], add_special_tokens=False)
        params = {"temperature": 0, "skip_special_tokens": False} | body["sampling_params"]
        body |= {"rid": f"recorded-{name}", "stream": True, "sampling_params": params}
        scheduler.aborts = name == "abort"
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request(
            "POST", "/generate", json.dumps(body), {"content-type": "application/json"}
        )
        response = connection.getresponse()
        data = response.read()
        print(name, response.status, response.headers["content-type"], data.count(b"\n\n"))
        (FOLDER / f"{name}.{kind}.txt").write_bytes(data)
    sys.stdout.flush()
    os._exit(0)  # threads of SGLang would wait


if __name__ == "__main__":
    main(*sys.argv[1:])
