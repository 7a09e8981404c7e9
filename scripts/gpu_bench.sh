#!/usr/bin/env bash
# Measures policies inside vLLM on a GPU, for docs/studies/evidence.md. Needs vLLM and this package; no network.
#
#   scripts/gpu_bench.sh model FOLDER              a folder with the shape of Llama-3.1-8B and SmolLM2's tokenizer
#   scripts/gpu_bench.sh serve FOLDER SLOTS [...]  start vLLM with our scheduler in the background, wait until it answers
#   scripts/gpu_bench.sh stock FOLDER SLOTS [...]  the same without our scheduler
#   scripts/gpu_bench.sh stock-priority FOLDER SLOTS [...]   stock vLLM that orders by each request's priority, for
#                                                  `python -m benchmarks.stock_order`
#   scripts/gpu_bench.sh stop
#   scripts/gpu_bench.sh bench OUT [...]           `lengthwise bench` on that server; resumes what is in OUT
#   scripts/gpu_bench.sh promises OUT [...]        what policies promise: `lengthwise` without predictions, with those of
#                                                  `fast` and `default` and with inverted lengths; then `ontime`, `sjf`,
#                                                  and `slo` at 1.25 times the p99 that `fcfs` had; four blocks each, in
#                                                  OUT-lanes and OUT-limits
#
# Weights are random: step times are those of a real 8B model, answers are noise, lengths are forced. Further arguments
# are passed on to vLLM or to `lengthwise bench`. TOKENIZER is the folder of SmolLM2-135M-Instruct.
set -euo pipefail
port=${PORT:-8311}
state=${STATE:-/tmp/lengthwise-gpu}
mkdir -p "$state"
export LENGTHWISE_BENCH_TOKEN=${LENGTHWISE_BENCH_TOKEN:-bench}

model() {
    mkdir -p "$1"
    cp "${TOKENIZER:?folder of SmolLM2-135M-Instruct}"/{tokenizer.json,tokenizer_config.json,chat_template.jinja} "$1"
    cat > "$1/config.json" <<'CONFIG'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
 "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "head_dim": 128, "vocab_size": 49152,
 "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "hidden_act": "silu",
 "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false, "torch_dtype": "bfloat16",
 "bos_token_id": 1, "eos_token_id": 2, "use_cache": true, "initializer_range": 0.02}
CONFIG
}

start() { # folder, slots, vLLM flags
    local folder=$1 slots=$2
    shift 2
    # Ten tokens per event: one event per token would make the HTTP server the bottleneck. CUDA graphs for up to 1,024
    # tokens: vLLM's default is twice the slots, and with 32 slots every prompt step would run without a graph, in four
    # times the time.
    setsid nohup python3 -m vllm.entrypoints.openai.api_server --host 127.0.0.1 --port "$port" --model "$folder" \
        --served-model-name llama-3.1-8b-shape --load-format dummy --dtype bfloat16 --max-num-seqs "$slots" \
        --max-model-len 8192 --gpu-memory-utilization 0.85 --enable-prefix-caching --async-scheduling \
        --stream-interval 10 --compilation-config '{"max_cudagraph_capture_size": 1024}' \
        --disable-uvicorn-access-log "$@" > "$state/server.log" 2>&1 &
    echo $! > "$state/pid"
    for _ in $(seq 600); do
        curl -sf "http://127.0.0.1:$port/health" > /dev/null && return
        kill -0 "$(cat "$state/pid")" 2> /dev/null || { tail -40 "$state/server.log" >&2; return 1; }
        sleep 0.5
    done
    echo "vLLM does not answer; see $state/server.log" >&2
    return 1
}

bench() { # folder of the results, flags of `lengthwise bench`
    local out=$1
    shift
    python3 -m lengthwise bench --url "http://127.0.0.1:$port" --out "$out" \
        --machine "${MACHINE:-$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)}" "$@"
    cp "$state/steps.parquet" "$out/" 2> /dev/null || true
}

promises() { # folder of the results, flags of `lengthwise bench`
    local out=$1 seconds
    shift
    bench "$out-lanes" --policy lengthwise --predictor none,fast,default,inverted --blocks 4 --seed 20 "$@"
    seconds=$(python3 -m lengthwise bench --no-run --out "$out-lanes" --json | python3 -c '
import json, sys
arms = json.load(sys.stdin)["arms"]
print(round(1.25 * next(each["seconds"]["p99"] for each in arms if each["arm"]["policy"] == "fcfs"), 1))')
    bench "$out-limits" --policy "ontime:ttft=2,slo:seconds=$seconds,sjf" --predictor fast --blocks 4 --seed 21 "$@"
    python3 -m lengthwise bench --no-run --out "$out-lanes" --also "$out-limits" --report "$out.html"
}

command=$1
shift
case $command in
    model) model "$1" ;;
    serve)
        options="{\"lengthwise\": {\"policy\": \"fcfs\", \"predictor\": \"none\", \"steps\": \"$state/steps.parquet\"}}"
        start "$1" "$2" --scheduler-cls lengthwise.vllm.LengthwiseScheduler --additional-config "$options" "${@:3}"
        ;;
    stock) start "$@" ;;
    stock-priority)
        # The LLM's own name, from which the gateway knows whose lengths to predict.
        VLLM_SERVER_DEV_MODE=1 start "$1" "$2" --served-model-name meta-llama/Llama-3.1-8B-Instruct \
            --scheduling-policy priority --middleware benchmarks.forced_lengths.ForcedLengths "${@:3}"
        ;;
    stop)
        kill -TERM -- "-$(cat "$state/pid")" 2> /dev/null || true
        for _ in $(seq 40); do kill -0 "$(cat "$state/pid")" 2> /dev/null || break; sleep 0.5; done
        kill -KILL -- "-$(cat "$state/pid")" 2> /dev/null || true
        ;;
    bench) bench "$@" ;;
    promises) promises "$@" ;;
    *) sed -n '2,18p' "$0" >&2; exit 2 ;;
esac
