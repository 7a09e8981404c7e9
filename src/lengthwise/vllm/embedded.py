"""The embedded engine: vLLM with our scheduler inside, as a child process on loopback.

It is started, checked for health, logged, stopped with its parent, and restarted when it dies. The contact with vLLM
is its command line and HTTP.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from lengthwise.cache import cache_home
from lengthwise.defaults import DEFAULT_POLICY, DEFAULT_PREDICTOR, EMBEDDED_SLOTS
from lengthwise.errors import InputError
from lengthwise.policies import make_policy
from lengthwise.predictors.probe import DEFAULT as DEFAULT_PROBE
from lengthwise.predictors.probe import load_probe, probe_path
from lengthwise.predictors.service import known_predictor
from lengthwise.predictors.state_file import STATE_CACHE, known_state
from lengthwise.processes import die_with_parent, end_process
from lengthwise.version import install_line
from lengthwise.vllm.refine import WORKER as STATES_WORKER
from lengthwise.vllm.refine import check_fit
from lengthwise.vllm.smollm2 import MODEL_NAME, model_folder

SCHEDULER: Final = "lengthwise.vllm.LengthwiseScheduler"
_STARTS_IN_S: Final = 300.0
_COMPILES_IN_S: Final = 900.0  # on top of that, where nothing is compiled yet and others compile beside it
_BATCHED_TOKENS: Final = 2048  # vLLM's default on a CPU; without chunks it must hold the longest prompt
_UNASSIGNED: Final = range(20_000, 32_768)  # below the ports that Linux gives to sockets without one
_CPU: Final = Path("/proc/cpuinfo")


class EngineOptions(BaseModel):
    """How the child process is started. The defaults suit two CPU cores; on a GPU vLLM's are better.

    The options of `lengthwise engine` are these fields.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    policy: str = DEFAULT_POLICY
    """Order of waiting requests in the engine (docs/reference/policies.md)."""
    predictor: str = DEFAULT_PREDICTOR
    """Length predictor: fast, default, none, or a model file (.lw)."""
    learning: bool = True
    """Learn from the lengths of answers while serving (docs/reference/online.md). Off: predictions are those of the
    model file, and nothing else predicts."""
    state: Annotated[str, BeforeValidator(known_state)] = STATE_CACHE
    """Folder for what is learned, saved every minute and at the end and restored at the start: a path, `cache` (in the
    user's cache folder) or `off`."""
    probe: str | None = None
    """Refine predictions by the LLM's hidden states: default, or a probe file (.lw)."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port to listen on; 0 takes any free port."""
    model: str | None = None
    """Model folder or hub name instead of the embedded SmolLM2-135M."""
    max_num_seqs: Annotated[int, Field(ge=1)] = EMBEDDED_SLOTS
    """Requests that run at once inside the engine."""
    max_model_len: Annotated[int, Field(ge=16)] = 2048
    """Context length: tokens of prompt and answer together."""
    warm_predictor: bool = True
    """Start the predictor with the engine; off: at the first request that brings no prediction."""
    plugin: bool = True
    """Use our scheduler; off: stock vLLM, to compare with."""
    compiled: bool = False
    """Compile the LLM: faster steps, slower first start."""
    extra: tuple[str, ...] = ()
    """Further vLLM flags."""
    plugin_options: dict[str, Any] = {}
    """Further options of the plug-in, for measurements."""


@dataclass
class EmbeddedEngine:
    """A running vLLM: `with EmbeddedEngine(EngineOptions(policy="sjf")) as engine: engine.url`."""

    options: EngineOptions = field(default_factory=EngineOptions)
    restarts: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _port: int = 0
    _stopping: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://{self.options.host}:{self._port}"

    @property
    def log(self) -> Path:
        """Its log file."""
        return cache_home() / "logs" / f"engine-{self._port}.log"

    @property
    def healthy(self) -> bool:
        """Whether it answers its health check now."""
        return _healthy(self.url)

    @property
    def pid(self) -> int | None:
        """Process id of the child, also its session id."""
        return None if self._process is None else self._process.pid

    def kill(self) -> None:
        """Kill the child, as a crash would; it is restarted."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def start(self) -> None:
        """Start the child, wait until it is healthy, then restart it whenever it dies."""
        make_policy(self.options.policy)
        known_predictor(self.options.predictor)
        _check_probe(self.options)
        _need_vllm()
        self._port = _free_port(self.options.host, self.options.port)
        atexit.register(self.stop)
        self._spawn()
        try:
            self._wait_until_healthy()
        except BaseException:
            self.stop()
            raise
        threading.Thread(target=self._watch, name="engine-watch", daemon=True).start()

    def stop(self) -> None:
        """Stop the child and everything it started."""
        self._stopping.set()
        if self._process is not None:
            end_process(self._process)
        atexit.unregister(self.stop)

    def command(self) -> list[str]:
        """Return the command line of the child."""
        options = self.options
        model = options.model or str(model_folder())
        name = options.model or MODEL_NAME
        flags = [
            "--host",
            options.host,
            "--port",
            str(self._port),
            "--model",
            model,
            "--served-model-name",
            name,
        ]
        flags += ["--max-num-seqs", str(options.max_num_seqs), "--max-model-len", str(options.max_model_len)]
        chosen: dict[str, Any] = {}
        if options.plugin:
            chosen = {**options.plugin_options, "policy": options.policy}
            chosen["predictor"] = known_predictor(options.predictor)
            if not options.learning:
                chosen["learning"] = False
            if options.state != STATE_CACHE:
                chosen["state"] = options.state
            if not options.warm_predictor:
                chosen["warm_predictor"] = False
            if options.probe is not None:
                chosen["probe"] = _probe_name(options.probe)
                flags += ["--worker-cls", STATES_WORKER]
            flags += ["--scheduler-cls", SCHEDULER]
        if chosen:
            flags += ["--additional-config", json.dumps({"lengthwise": chosen})]
        if not _has_gpu():
            flags += [] if options.compiled else ["--enforce-eager"]
            flags += ["--dtype", "bfloat16" if _has_bfloat16() else "float32"]
            # vLLM's CPU build crashes on a seeded request whose prompt is computed in chunks: it rewinds the
            # request's random generator, which only CUDA's supports.
            budget = max(_BATCHED_TOKENS, options.max_model_len)
            flags += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(budget)]
        return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags, *options.extra]

    def _spawn(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            # A new session, so that all processes it starts can be ended with it.
            self._process = subprocess.Popen(  # noqa: S603  (our own command line)
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**_CPU_DEFAULTS, **os.environ},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def _wait_until_healthy(self) -> None:
        limit = _STARTS_IN_S + (_COMPILES_IN_S if self.options.compiled else 0.0)
        deadline = time.monotonic() + limit
        while not self.healthy:
            if self._process is None or self._process.poll() is not None:
                raise InputError("the engine stopped while starting", hint=f"see its log: {self.log}")
            if time.monotonic() > deadline:
                raise InputError(f"the engine did not start in {limit:.0f} s", hint=f"see {self.log}")
            time.sleep(0.25)

    def _watch(self) -> None:
        """Restart the child when it dies, waiting longer each time it dies again."""
        while not self._stopping.wait(0.5):
            if self._process is None or self._process.poll() is None:
                continue
            end_process(self._process)
            self.restarts += 1
            if self._stopping.wait(min(30.0, 0.5 * 2.0**self.restarts)):
                return
            self._spawn()


# Settings that the CPU build of vLLM needs to start, and that leave cores to other processes. The user's environment
# wins.
_CPU_DEFAULTS: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_USE_AOT_COMPILE": "0",  # 0.32 cannot load such a file on a CPU and recompiles at each start
}


def _probe_name(name: str) -> str:
    """Return the name, or a file's full path: the child may run in another folder."""
    return name if name == DEFAULT_PROBE else str(probe_path(name).resolve())


def _check_probe(options: EngineOptions) -> None:
    """Refuse a probe that the child could not use, before it is started."""
    if options.probe is None:
        return
    if not options.plugin:
        raise InputError("a probe with stock vLLM", field="--probe", hint="leave out the probe")
    model = Path(options.model or cache_home() / MODEL_NAME)
    hidden_size, layers = _shape(model)
    llm = MODEL_NAME if options.model is None else options.model
    check_fit(load_probe(options.probe), [llm], hidden_size=hidden_size, layers=layers)


def _shape(model: Path) -> tuple[int | None, int | None]:
    """Return hidden size and layers from a model's folder; None for a hub name."""
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        return int(config["hidden_size"]), int(config["num_hidden_layers"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, None  # the plug-in checks again, once vLLM has loaded the model


def _need_vllm() -> None:
    if importlib.util.find_spec("vllm") is None:
        raise InputError(
            "vLLM is not installed",
            hint=f"run `make engine` (CPU) or `{install_line('vllm')}` (GPU), or name a running engine",
        )


def _free_port(host: str, port: int) -> int:
    """Return the port, or for 0 a free one that the system gives to no other socket while the engine starts."""
    if port == 0:
        for candidate in random.sample(_UNASSIGNED, 64):
            with contextlib.suppress(InputError):
                return _free_port(host, candidate)
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError as error:
            raise InputError(f"port {port} of {host} is taken ({error.strerror})", hint="choose another") from error
        return int(probe.getsockname()[1])


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2.0) as answer:  # noqa: S310  (our own loopback URL)
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _has_gpu() -> bool:
    return any(Path(device).exists() for device in ("/dev/nvidia0", "/dev/kfd"))


def _has_bfloat16() -> bool:
    """Whether this CPU has bfloat16 instructions.

    Without them vLLM in bfloat16 crashes on the first request (no AVX-512), or computes prompts more slowly than in
    float32 (AVX-512 alone) and answers no faster.
    """
    with contextlib.suppress(OSError):
        return "bf16" in _CPU.read_text(encoding="utf-8")
    return False
