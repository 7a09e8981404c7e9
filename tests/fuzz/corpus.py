"""What has broken a reader once, or was built to: the beginnings of fuzzing, and a test each.

A defect that fuzzing finds is added here, as the bytes that Hypothesis prints, with the fix.
"""

from __future__ import annotations

import json
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from lengthwise.predictors.model_file import read_model_file, write_model_file
from lengthwise.predictors.resolve import model_path
from lengthwise.predictors.state_file import Kept, StateFile
from lengthwise.traffic.log import HEADER, line_of
from tests.gateway import test_engine_bytes, test_faults, test_wire
from tests.gateway.formats import stream_events, whole_answer
from tests.traffic.traffic_rows import PLAIN

DOCS: Final = Path(__file__).parents[2] / "docs"

BODIES: Final = [
    *(raw for _, raw in test_wire.bodies()),
    b'{"prompt": "x", "max_tokens": -1',
    b'{"model":"m","prompt":[' + b"{}," * 500 + b"{}]}",
    b'{"model":"m","prompt":[' + b"{}," * 70_000 + b"{}]}",
    b'{"model":"m","prompt":"x","metadata":[' + b"[]," * 500 + b"[]]}",
    b'{"model":"m","prompt":' + b"[" * 300 + b"]" * 300 + b"}",
    b'{"model":"m","prompt":[' + b"12345," * 9999 + b"1]}",
    b'{"model":"m","messages":[1]}',
    b'{"model":"a","x":"\\"model\\":1","model":"b","prompt":"x"}',
    b'{"\\u006dodel":7,"prompt":"x"}',
    b'{"prompt":"x","vllm_xargs":{"length_mu":1,"slo_s":"1e-400","ttft_s":true,"request_class":5,"tenant":"b"}}',
    b'{"prompt":"x","nvext":{"agent_hints":{"osl":1e308,"priority":-1e999,"strict_priority":1}}}',
    b'{"prompt":"\\ud800","user":"\\udfff"}',
    b'{"model":"m","input":"x","previous_response_id":"../../sleep","background":true,"stream":true}',
    b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,"stream_options":{"include_usage":false}}',
    b'{"model":"m","messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}],"tools":[{}]}',
]

HEADERS: Final = [
    b"x-session-id: \xff\nx-lengthwise-template: \xfe",
    b"x-lengthwise-slo-s: nan\nx-lengthwise-ttft-s: 1e400\nx-lengthwise-per-token-s: -1",
    b"x-lengthwise-request-class: batch\nx-session-id: " + b"s" * 5000,
    b"x-lengthwise-slo-s: " + b"9" * 5000,
]

HEADS: Final = [
    test_wire.request(),
    test_wire.request(closes=False) * 3,
    test_wire.request(test_wire.JSON, *test_wire.H2C, closes=False),
    test_wire.chunked(test_wire.CHUNK.replace(b"\r", b";a=b\r", 1) + b"0\r\nx: y\r\n\r\n"),
    test_wire.chunked(b"f" * 17 + b"\r\nabc"),
    test_wire.chunked(b"-1\r\nabc"),
    test_wire.HEAD + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    test_wire.HEAD + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    test_wire.HEAD + b"content-length: " + b"9" * 30 + b"\r\n\r\n",
    test_wire.HEAD + b"content-length: 100000\r\n\r\n{",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    b"CONNECT evil:443 HTTP/1.1\r\nhost: evil:443\r\n\r\n",
    test_wire.request(test_wire.JSON, b"x: a\x00b"),
    test_wire.request(test_wire.JSON, b"x: a\r\n b"),
    test_wire.request(test_wire.JSON, b"x: a\rb: c"),
    test_wire.request(test_wire.JSON, b"expect: 100-continue"),
]

ANSWERS: Final = [
    *test_faults.GARBAGE,
    b"HTTP/1.1 200 OK\r\nx-note: h\xc3\xa9\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: y\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\nxyz",
]


def _streams() -> list[bytes]:
    found = []
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
        opening, each, closing = stream_events(path, 3, "stop", "stand-in", usage=True)
        found += [b"".join([*opening, *each, *closing]), json.dumps(whole_answer(path, 3, "stop", "stand-in")).encode()]
    return found


STREAMS: Final = [
    *_streams(),
    *(
        b'{"choices": [{"finish_reason": "stop"}], "usage": {"completion_tokens": %s}}' % count.encode()
        for count in test_engine_bytes.COUNTS
    ),
    *(
        b'data: {"choices": [], "usage": {"completion_tokens": %s}}\n\n' % count.encode()
        for count in test_engine_bytes.COUNTS
    ),
    b'{"usage": ' + b"[" * 100_000,
    b'data: {"usage": ' + b"[" * 100_000 + b"\n\n",
    b'event: response.created\ndata: {"response": {"id": "resp_1", "status": 5}, "sequence_number": '
    + b"9" * 5000
    + b"}\n\n",
    b'data: {"response": {"id": "\\ud800", "previous_response_id": []}}\n\n',
    b'event: message_delta\rdata: {"usage": {"output_tokens": 1}}\r\r',
]

CONFIGS: Final = [
    (DOCS / "guides" / "fleet.yaml").read_bytes(),
    re.sub(rb"^(\s*)#(?=\w)", rb"\1", (DOCS / "guides" / "fleet.yaml").read_bytes(), flags=re.MULTILINE),
    b"- -" + b"9" * 5000,
    b"port: 2026-02-30",
    b"engines: [http://a:1]\nclasses: {batch: {ttft_s: 0}}\ntenants: {a: {per_token_s: .nan}}",
    b"engines: [{url: 'http://a', api_key: '${NOT_SET}'}]",
    b"engines: ['http://user:s3cret@a']\nengines: ['http://b']",
    b"engines: ['http://" + b"a" * 5000 + b"']",
    b"engines: ['http://a..b', 'http://[::1', 'http://a:99999']",
    b"engines: ['simulated:2*llama-3-8b@a100']",
    b"engines: [http://a:1]\npolicy: " + b"fair(" * 2000,
    b"engines: &a [*a]",
    b"engines: [http://a:1]\nmodels: {m: {aliases: [m], fallbacks: [m]}}",
    b"engines: [http://a:1]\nport: 0x10\nin_flight: 1e3\nhealth_interval_s: .inf",
    b"? [a]\n: b",
    b"\xff\xfe\x00",
    b"!!python/object/apply:os.system ['true']",
    b"- " * 2000,
    b"engines: [\x06]",
    b"engines: ['simulated:\n\n\nx']",
]

KEYS: Final = [
    b'{"format": 1, "tenants": [{"name": "a", "keys": [{"sha256": "'
    + b"0" * 64
    + b'", "created": "2026-01-01T00:00:00Z"}]}]}',
    b'{"tenants": [{"name": "", "keys": [], "weight": 0, "requests_per_minute": -1}]}',
    b'{"tenants": [{"name": "a"}, {"name": "a"}]}',
    b"[" * 100_000,
]

LOGS: Final = [
    (json.dumps(HEADER) + "\n" + line_of(PLAIN) * 3).encode(),
    json.dumps(HEADER).encode() + b"\n" + line_of(PLAIN._replace(names="abcd", mu=float("nan"))).encode(),
    b'{"kind": "lengthwise traffic", "format": ' + b"9" * 5000 + b"}\n",
    json.dumps(HEADER).encode() + b'\n{"arrival_s": 1e400, "output_tokens": -1}\n',
    json.dumps(HEADER).encode() + b"\n" + b"[" * 100_000,
]

METRICS: Final = [
    b'vllm:num_requests_running{engine="0"} 4.0\nvllm:num_requests_waiting{engine="0"} 2\nvllm:kv_cache_usage_perc 1\n',
    b'vllm:cache_config_info{a="}",block_size="16",num_gpu_blocks="11"} 1.0\n',
    b"vllm:num_requests_running " + b"9" * 400 + b"\nvllm:num_requests_waiting NaN\n",
    b'vllm:num_requests_running{model_name="a } b\\" 7"} 4 1700000000\nvllm:num_requests_waiting 1\n',
    b"sglang:num_running_reqs 2.0\nsglang:num_queue_reqs 1.0\nsglang:token_usage 5e-1\n",
    b"vllm:num_requests_running{\nvllm:num_requests_waiting{} \xff\n",
]


@cache
def model_parts() -> dict[str, bytes]:
    """Return the parts of the packaged `fast`."""
    return dict(read_model_file(model_path("fast")).parts)


def _written(kind: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        if kind == "model":
            card = {"kind": "test", "name": "t", "data": "none", "licences": [], "limits": "all"}
            write_model_file(path, card, {"weights": bytes(range(256)) * 4})
        else:
            StateFile(path).write(Kept("fast@1", {"history": bytes(1000)}))
        return path.read_bytes()


MODELS: Final = [_written("model"), b"", b"nonsense", b"PK\x03\x04 nonsense", _written("state")]
STATES: Final = [_written("state"), b"", b"PK\x03\x04 nonsense", _written("model")]
