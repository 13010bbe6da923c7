# stages.sh: what each stage of tests/gpu does, which sources it. A stage prints what it found and returns an exit code.
# It needs source_dir, prefix, build and link_flags.

trainer=$build/bin/trainer
rows=$source_dir/.gpu/rows
full="--model.path qwen3-vl-30b-a3b --training.backend cuda"
# The mode that `plan` chooses for 48 layers on 8 ranks within 85 % of memory.
mode="--activation_checkpoint.mode full"

need() { # FILE..
    local f
    for f in "$@"; do
        [ -e "$f" ] || { echo "$f is missing; tests/gpu build or tests/gpu --prepare makes it"; return 1; }
    done
}

# Prints those of the targets that this build has; Open MPI or NCCL's header may be missing.
targets_there() { # TARGET..
    local list name
    list=$(cmake --build "$build" --target help)
    for name; do
        grep -qE "(^|\.\.\. )$name(:|\$| )" <<<"$list" && echo "$name"
    done
    return 0
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
    cmake --build "$build" -j "$(nproc)" --target trainer tessera_cuda test_parity_cuda \
        test_model_cuda bench_feed $(targets_there tessera_mpi ranks_parity tessera_nccl nccl_alone) || return
    ldd "$trainer" | grep 'not found' && return 1
    "$trainer" --version || return
    # The CPU backend must work with the packed libraries.
    "$trainer" bench ops gemm --model.path debug --training.backend cpu --training.seq_len 64 || return
    ls -l "$build/bin" "$build/lib"
}

ops() { sed -nE 's/\/\*.*//; s/OP\(([a-z0-9_]+)\)/\n\1\n/gp' "$source_dir/trainer/ops/ops.def" |
    grep -E '^[a-z0-9_]+$' | grep -vx name; } # a comment there names the macro with "name"

# Runs one op after the other, each in a process of its own, so that a fault in one does not affect the others.
each_op() { # OPS COMMAND..
    local op bad=() list=$1
    shift
    for op in $list; do
        echo "-- $op"
        "$@" --op "$op"
        case $? in
        0) ;;
        77) return 69 ;; # there is no GPU for any of them, and the program says why
        *) bad+=("$op") ;;
        esac
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
    # NVIDIA's own libraries are not checked.
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
    "$build/tests/test_model_cuda"
    case $? in 0) ;; 77) return 69 ;; *) return 1 ;; esac
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

# Prints what `plan` says of this mode and batch at 48 layers on 8 ranks.
planned() { # SEQ_LEN
    echo "-- planned: 48 layers, 8 ranks"
    "$trainer" plan --model.path qwen3-vl-30b-a3b $mode --parallelism.world_size 8 \
        --training.seq_len "$1" --training.local_batch_size 4 --training.global_batch_size 32 |
        grep -E '^(fits|does not fit):|^  step '
}

# Runs steps at several depths, projects them to 48 layers and compares that with the goals. A goal that is missed does
# not fail the stage: someone has to judge the `goal:` lines.
bench() { # LAYERS STEPS GOALS ARGS..
    local layers=$1 steps=$2 goals=$3 log=$build/bench-$$.log
    shift 3
    "$trainer" bench step $full $mode --layers "$layers" --training.local_batch_size 4 \
        --training.global_batch_size 4 --training.steps "$steps" --ranks 8 "$@" | tee "$log"
    local code=${PIPESTATUS[0]}
    [ "$code" = 0 ] || return "$code"
    awk -v goals="$goals" -f "$source_dir/tests/bench/gpu/goals.awk" "$log"
}

stage_bench_text() {
    need "$trainer" && planned 12288 || return
    bench 3,4,6 100 20.7,35,45 --training.seq_len 12288 --load 3
}

# Packed documents of C4.
stage_bench_c4() {
    need "$trainer" "$rows/c4-12288.rec" || return
    bench 3,4,6 100 20.7,35,45 --training.seq_len 12288 --load 3 --feed.replay "$rows/c4-12288.rec"
}

# The same step at other loads of the experts, and with short documents, at one depth.
stage_bench_loads() {
    need "$trainer" || return
    local load
    for load in 1 8; do
        echo "-- busiest expert $load times the mean"
        bench 4 30 20.7,35,45 --training.seq_len 12288 --load $load || return
    done
    echo "-- documents of 340 tokens"
    bench 4 30 20.7,35,45 --training.seq_len 12288 --bench.document 340 --load 3
}

images() { # SEQ_LEN
    need "$trainer" "$rows/vqa-$1.rec" && planned "$1" || return
    bench 3,4,5 100 13.7,30,40 --training.seq_len "$1" --load 3 --feed.replay "$rows/vqa-$1.rec"
}

stage_bench_images_8192() { images 8192; }
stage_bench_images_12288() { images 12288; }

# Runs one rank of eight alone, with copies at an assumed bandwidth in place of its collectives
# (trainer/parallel/layouts.md). That is a model of how much of them computing hides, not a measurement of eight GPUs. First
# FSDP at the depths of bench-text, then experts shared by eight ranks at one depth.
stage_replay() {
    need "$trainer" && planned 12288 || return
    replayed 3,4,6 30 || return
    echo "-- half the bandwidth"
    replayed 4 20 --comm.replay_bandwidth 180 || return
    echo "-- experts of eight ranks, exchanged"
    replayed 4 20 --parallelism.expert_parallel_degree 8
}

replayed() { # LAYERS STEPS ARGS..
    local layers=$1 steps=$2
    shift 2
    "$trainer" bench step $full $mode --layers "$layers" --training.seq_len 12288 \
        --training.local_batch_size 4 --training.global_batch_size 32 --training.steps "$steps" --load 3 \
        --comm.engine replay --parallelism.world_size 8 "$@"
}

# Feeds the trainer over ipc:// from another process, which serves a recording through prepd's sending path; and then
# from a prepd that decodes, if this machine has what prepd is built with.
stage_feed() {
    need "$trainer" "$build/tests/bench_feed" "$rows/vqa-8192.rec" || return
    local backend=${TESSERA_FEED_BACKEND:-cuda} model=$full length=8192 recording=$rows/vqa-8192.rec
    if [ "$backend" = cpu ]; then # a dry run is small
        model="--model.path $rows/debug-model --training.backend cpu" length=256
        recording=$rows/debug.rec
    fi
    echo "-- a recording"
    live "$model" "$length" "$build/tests/bench_feed" "ipc://$build/feed.sock" "$recording" || return
    [ "$backend" != cpu ] || return 0
    echo "-- decoding live"
    build_prepd || { echo "prepd cannot be built here (libvips is not there): not measured"; return 0; }
    mkdir -p "$build/live" && tar -xzf "$source_dir/.gpu/live.tar.gz" -C "$build/live" || return
    live "$model" "$length" "$build/prepd/bin/prepd" serve -c "$source_dir/configs/smoke.yaml" --quiet \
        --model.path qwen3-vl-30b-a3b --model.tokenizer "$build/live/tokenizer" \
        --data.path "$build/live/vqav2" --data.group none --training.seq_len "$length" --training.global_batch_size 4 \
        --prepd.endpoint "ipc://$build/feed.sock" --prepd.cache_dir "$build/live/cache"
}

# Trains 100 steps on the stream that the command serves at feed.sock.
live() { # MODEL SEQ_LEN COMMAND..
    local model=$1 length=$2 rows_a_step=4 feeder status
    shift 2
    case $model in *debug*) rows_a_step=2 ;; esac
    rm -f "$build/feed.sock"
    "$@" &
    feeder=$!
    "$trainer" bench step $model $mode --layers 4 --live --prepd.endpoint "ipc://$build/feed.sock" \
        --training.seq_len "$length" --training.local_batch_size $rows_a_step \
        --training.global_batch_size $rows_a_step --training.steps 100 --ranks 8 --load 3
    status=$?
    kill $feeder 2>/dev/null
    wait $feeder
    return $status
}

build_prepd() {
    command -v pkg-config >/dev/null || return
    PKG_CONFIG=pkg-config pkg-config --exists vips libjpeg libturbojpeg libavformat libavcodec \
        libswscale libmicrohttpd libseccomp libzmq libzstd yaml-0.1 yajl || return
    PKG_CONFIG=pkg-config cmake -S "$source_dir" -B "$build/prepd" -DTRAINER=OFF -DWERROR=OFF >/dev/null &&
        cmake --build "$build/prepd" -j "$(nproc)" --target prepd prepd_image >/dev/null
}

# Prints the mean loss of steps 100 to 200 of the debug model, from the lines of a run.
mean_loss() { # BACKEND SEED
    "$trainer" train --model.path "$rows/debug-model" --training.backend "$1" --training.seed "$2" \
        --feed.replay "$rows/debug.rec" --training.local_batch_size 2 --training.global_batch_size 2 \
        --training.steps 200 --optimizer.lr 1e-3 --lr_scheduler.warmup_steps 10 --metrics.log_freq 1 \
        --job.dump_folder "$build/loss-$1-$2" >"$build/loss-$1-$2.log" 2>&1 ||
        { local code=$?; tail -3 "$build/loss-$1-$2.log" >&2; return $code; }
    sed -nE 's/^step: +([0-9]+)  loss: +([0-9.]+) .*/\1 \2/p' "$build/loss-$1-$2.log" |
        awk '$1 >= 100 { sum += $2; n++ } END { if (n < 101) exit 1; printf "%.6f", sum / n }'
}

# The loss in bf16 on the GPU may differ from that in fp32 on the CPU by no more than fp32 differs between seeds.
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

# Compares what a run takes of memory with what was planned, part by part; 2 % of the total are allowed.
stage_memory() {
    need "$trainer" "$rows/vqa-12288.rec" || return
    local log=$build/memory-stage.log status=0 feed
    for feed in "" "--feed.replay $rows/vqa-12288.rec"; do
        echo "-- ${feed:-text, one document a row}"
        "$trainer" bench memory $full $mode --layers 4 $feed --training.seq_len 12288 \
            --training.local_batch_size 4 --training.global_batch_size 4 --training.steps 20 |
            tee "$log"
        local code=${PIPESTATUS[0]}
        [ "$code" = 0 ] || return "$code"
        sed -nE 's/^memory: all planned .*: off by ([0-9.-]+) % .*/\1/p' "$log" |
            awk '{ n++; bad += $1 > 2 || $1 < -2 } END { exit n != 1 || bad }' ||
            { echo "more than 2 % off"; status=1; }
    done
    return $status
}

stage_train() {
    need "$trainer" "$rows/vqa-8192.rec" || return
    local run=$build/train-stage
    rm -rf "$run"
    nvidia-smi --query-gpu=memory.used,memory.total --format=csv || true # before the context
    "$trainer" train $full $mode --model.layers 4 --feed.replay "$rows/vqa-8192.rec" \
        --training.seq_len 8192 --training.local_batch_size 4 --training.global_batch_size 4 \
        --training.steps 100 --optimizer.lr 1e-4 --lr_scheduler.warmup_steps 10 \
        --job.dump_folder "$run" 2>&1 | tee "$build/train-stage.log"
    local code=${PIPESTATUS[0]}
    [ "$code" = 0 ] || return "$code"
    # The plan and the scratch memory must be within 2 % of what was taken.
    sed -nE 's/^memory: planned .*: off by ([0-9.-]+) % .*/\1/p' "$build/train-stage.log" |
        awk '{ n++; bad += $1 > 2 || $1 < -2 } END { exit n != 1 || bad }' ||
        { echo "the memory plan is more than 2 % off"; return 1; }
    "$trainer" train $full $mode --model.layers 4 --feed.replay "$rows/vqa-8192.rec" \
        --training.seq_len 8192 --training.local_batch_size 4 --training.global_batch_size 4 \
        --training.steps 4 --metrics.log_freq 1 --job.dump_folder "$run/profile" --profile || return
    sed -nE 's/.*"patches": ?([0-9]+).*/patches of a step: \1/p' "$run/profile/metrics.jsonl" | tail -1
}

stage_torch() {
    command -v nvidia-smi >/dev/null || { echo "no NVIDIA driver here"; return 69; }
    python3 -c 'import torch, transformers' 2>/dev/null ||
        { echo "no torch and transformers here: nothing to compare with"; return 0; }
    python3 -B "$source_dir/tests/bench/gpu/torch_layer.py"
}
