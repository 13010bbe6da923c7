# stages.sh: what each stage of tests/gpu does; sourced by it. Each ends with its own exit code and
# prints what it found. Wants source_dir, prefix, build, link_flags.

trainer=$build/bin/trainer
rows=$source_dir/.gpu/rows
full="--model.path qwen3-vl-30b-a3b --training.backend cuda"
# What plan fits at 48 layers on 8 ranks within 85 % of memory.
mode="--activation_checkpoint.mode full"

need() { # FILE..
    local f
    for f in "$@"; do
        [ -e "$f" ] || { echo "$f is not there: tests/gpu build, or tests/gpu --prepare, makes it"; return 1; }
    done
}

stage_build() {
    command -v nvcc >/dev/null || { echo "no nvcc in PATH, /usr/local/cuda or Python's wheels"; return 1; }
    command -v cmake >/dev/null || { echo "no cmake"; return 1; }
    nvcc --version | tail -1
    cmake --version | head -1
    ${CC:-cc} --version | head -1
    local generator="Unix Makefiles"
    command -v ninja >/dev/null && generator=Ninja
    cmake -S "$source_dir" -B "$build" -G "$generator" -DPREPD=OFF -DCUDA=ON -DWERROR=OFF \
        -DCMAKE_EXE_LINKER_FLAGS="$link_flags" -DCMAKE_SHARED_LINKER_FLAGS="$link_flags" || return
    cmake --build "$build" -j "$(nproc)" --target trainer tessera_cuda test_parity_cuda test_model_cuda || return
    ldd "$trainer" | grep 'not found' && return 1
    "$trainer" --version || return
    # The CPU's side works with the libraries that travelled.
    "$trainer" bench ops gemm --model.path debug --training.backend cpu --training.seq_len 64 || return
    ls -l "$build/bin" "$build/lib"
}

ops() { sed -nE 's/\/\*.*//; s/OP\(([a-z0-9_]+)\)/\n\1\n/gp' "$source_dir/trainer/ops/ops.def" | grep -E '^[a-z0-9_]+$'; }

# An op after another in processes of their own: a fault of one leaves the others alone.
each_op() { # OPS COMMAND..
    local op bad=() list=$1
    shift
    for op in $list; do
        echo "-- $op"
        "$@" --op "$op" || bad+=("$op")
    done
    [ ${#bad[@]} -eq 0 ] || { echo "failed: ${bad[*]}"; return 1; }
}

stage_parity() {
    need "$build/tests/test_parity_cuda" || return
    each_op "$(ops)" "$build/tests/test_parity_cuda" 2>&1 | grep -vE '^\[ RUN|^\[       OK|^\[-|^\[=' 
    return "${PIPESTATUS[0]}"
}

sanitizer() { # TOOL ARGS..
    local tool=$1
    shift
    command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer in PATH"; return 1; }
    # NVIDIA's libraries answer for themselves.
    each_op "$(ops | grep -vE '^(gemm|attention_fwd|attention_bwd)$')" compute-sanitizer --tool "$tool" --error-exitcode 99 "$@" "$build/tests/test_parity_cuda" \
        2>&1 | grep -vE '^\[ RUN|^\[       OK|^\[-|^\[='
    return "${PIPESTATUS[0]}"
}

stage_memcheck() { sanitizer memcheck --leak-check no; }
stage_racecheck() { sanitizer racecheck; }
stage_initcheck() { sanitizer initcheck; }

stage_steps() {
    need "$trainer" "$build/tests/test_model_cuda" || return
    echo "-- loss and every gradient against the CPU, with its choices of experts"
    "$build/tests/test_model_cuda" || return
    local flavour backend
    for flavour in debug tile; do
        for backend in cpu cuda; do
            echo "-- $flavour on $backend"
            "$trainer" bench step --model.path $flavour --training.backend $backend --layers 0 \
                --training.seq_len 512 --training.local_batch_size 2 --training.global_batch_size 4 \
                --training.steps 30 --optimizer.lr 1e-3 || return
        done
    done
}

stage_bench_ops() {
    need "$trainer" || return
    "$trainer" bench ops $full --training.seq_len 12288 --training.local_batch_size 4
}

stage_bench_text() {
    need "$trainer" || return
    "$trainer" bench step $full $mode --layers 3,4,6 --training.seq_len 12288 \
        --training.local_batch_size 4 --training.global_batch_size 4 --training.steps 100 --ranks 8 \
        --load 3
}

# The same step at other loads of the experts, and of packed documents; one depth.
stage_bench_loads() {
    need "$trainer" || return
    local load
    for load in 1 8; do
        echo "-- busiest expert $load times the mean"
        "$trainer" bench step $full $mode --layers 4 --training.seq_len 12288 \
            --training.local_batch_size 4 --training.global_batch_size 4 --training.steps 30 \
            --ranks 8 --load $load || return
    done
    echo "-- documents of 340 tokens"
    "$trainer" bench step $full $mode --layers 4 --training.seq_len 12288 --bench.document 340 \
        --training.local_batch_size 4 --training.global_batch_size 4 --training.steps 30 \
        --ranks 8 --load 3
}

stage_bench_images() {
    local length status=0
    for length in 8192 12288; do
        need "$trainer" "$rows/vqa-$length.rec" || return
        echo "-- 4 x $length"
        "$trainer" bench step $full $mode --layers 3,5 --feed.replay "$rows/vqa-$length.rec" \
            --training.seq_len $length --training.local_batch_size 4 --training.global_batch_size 4 \
            --training.steps 100 --ranks 8 --load 3 || status=1
    done
    return $status
}

# The mean loss of steps 100 to 200 of the debug model, from the lines of a run.
mean_loss() { # BACKEND SEED
    "$trainer" train --model.path "$rows/debug-model" --training.backend "$1" --training.seed "$2" \
        --feed.replay "$rows/debug.rec" --training.local_batch_size 2 --training.global_batch_size 2 \
        --training.steps 200 --optimizer.lr 1e-3 --lr_scheduler.warmup_steps 10 --metrics.log_freq 1 \
        --job.dump_folder "$build/loss-$1-$2" >"$build/loss-$1-$2.log" 2>&1 ||
        { tail -3 "$build/loss-$1-$2.log" >&2; return 1; }
    sed -nE 's/^step: +([0-9]+)  loss: +([0-9.]+) .*/\1 \2/p' "$build/loss-$1-$2.log" |
        awk '$1 >= 100 { sum += $2; n++ } END { if (n < 101) exit 1; printf "%.6f", sum / n }'
}

# bf16 on the GPU is as far from fp32 on the CPU as fp32 is from itself with another seed, at most.
stage_loss() {
    need "$trainer" "$rows/debug.rec" "$rows/debug-model" || return
    local backend=${TESSERA_LOSS_BACKEND:-cuda} seed got want="" one
    rm -rf "$build"/loss-*
    for seed in 1 2 3; do
        one=$(mean_loss cpu $seed) || return
        echo "fp32, seed $seed: mean loss of steps 100 to 200: $one"
        want+=" $one"
    done
    rm -rf "$build/loss-$backend-1"
    got=$(mean_loss "$backend" 1) || return
    echo "$backend, seed 1: $got"
    awk -v got="$got" -v want="$want" 'BEGIN {
        n = split(want, x, " "); low = high = x[1]
        for (i = 2; i <= n; i++) { low = x[i] < low ? x[i] : low; high = x[i] > high ? x[i] : high }
        off = got > x[1] ? got - x[1] : x[1] - got
        printf "difference to the same seed %.6f, spread of the seeds %.6f\n", off, high - low
        exit !(off <= high - low) }'
}

stage_train() {
    need "$trainer" "$rows/vqa-8192.rec" || return
    local run=$build/train-stage
    rm -rf "$run"
    nvidia-smi --query-gpu=memory.used,memory.total --format=csv # before the context
    "$trainer" train $full $mode --model.layers 4 --feed.replay "$rows/vqa-8192.rec" \
        --training.seq_len 8192 --training.local_batch_size 4 --training.global_batch_size 4 \
        --training.steps 100 --optimizer.lr 1e-4 --lr_scheduler.warmup_steps 10 \
        --job.dump_folder "$run" 2>&1 | tee "$build/train-stage.log"
    [ "${PIPESTATUS[0]}" = 0 ] || return
    # Plan and scratch against what was taken: 2 %.
    sed -nE 's/^memory: planned .*: off by ([0-9.-]+) % .*/\1/p' "$build/train-stage.log" |
        awk '{ n++; bad += $1 > 2 || $1 < -2 } END { exit n != 1 || bad }' ||
        { echo "the memory plan is more than 2 % off"; return 1; }
    "$trainer" train $full $mode --model.layers 4 --feed.replay "$rows/vqa-8192.rec" \
        --training.seq_len 8192 --training.local_batch_size 4 --training.global_batch_size 4 \
        --training.steps 4 --job.dump_folder "$run/profile" --profile
}

stage_torch() {
    python3 -c 'import torch, transformers' 2>/dev/null ||
        { echo "no torch and transformers here: nothing to compare with"; return 0; }
    python3 -B "$source_dir/tests/bench/gpu/torch_layer.py"
}
