# stages.sh: what each stage of tests/gpu does, which sources it. A stage prints what it found and returns an exit code.
# It needs source_dir, prefix, build and link_flags.
. tests/bench/gpu/built.sh
. tests/bench/gpu/sizes.sh

trainer=$build/bin/trainer
rows=$build/rows
. tests/bench/gpu/smoke.sh
. tests/bench/gpu/one_card.sh
on_cuda="--training.backend cuda${switches:+ --shared $switches}"
full="--model.path qwen3-vl-30b-a3b $on_cuda"
on() { [ "$1" = cuda ] && echo "$on_cuda" || echo "--training.backend $1"; } # BACKEND
# The mode that `plan` chooses for 48 layers on 8 ranks within 85 % of memory.
mode="--activation_checkpoint.mode full"

no_gpu() { [ "${TESSERA_GPU_NAME-}" = no-gpu ]; } # 69 is also the exit code of a device error

need() { # FILE..
    local f
    for f in "$@"; do
        [ -e "$f" ] || { echo "$f is missing; tests/gpu build or tests/gpu --prepare makes it"; return 1; }
    done
}

ops() { sed -nE 's/\/\*.*//; s/OP\(([a-z0-9_]+)\)/\n\1\n/gp' "$source_dir/trainer/ops/ops.def" |
    grep -E '^[a-z0-9_]+$' | grep -vx name; } # a comment there names the macro with "name"

at_once=8              # ops that are tried at the same time
op_s=$(scaled 60)      # and the limit of each
said_of_op() { grep -vE '^\[ RUN|^\[       OK|^\[-|^\[=' "$1"; } # FILE

# Runs a command for each op, in a process of its own, so that a fault or a hang in one does not affect the others. What failed is
# tried again alone, because ops that run at the same time share the GPU's memory.
each_op() { # OPS COMMAND..
    local op code bad=() list=$1 logs=$build/ops-$$
    shift
    side_by_side $at_once "$op_s" "$logs" "$list" "$@" || { cat "$logs"/*.log | grep '^process'; return $stuck_exit; }
    while read -r op; do
        code=$(cat "$logs/${op// /}.code")
        echo "-- $op"
        said_of_op "$logs/${op// /}.log"
        case $code in
        0) continue ;;
        77) return 69 ;; # there is no GPU for any of them, and the program says why
        $limit_exit) bad+=("$op (ended)"); continue ;;
        esac
        limited "$op_s" "$@" $op >"$logs/alone" 2>&1
        code=$?
        said_of_op "$logs/alone"
        echo "again alone: $op: exit code $code"
        [ $code != $stuck_exit ] || return $code
        [ $code = 0 ] || bad+=("$op ($code)")
    done <<<"$list"
    [ ${#bad[@]} -eq 0 ] || { echo "failed: ${bad[*]}"; return 1; }
}

# The ops with a kernel for Hopper or of cuDNN are tried with our portable ones too.
stage_parity() {
    need "$build/tests/test_parity_cuda" || return
    each_op "$(ops; printf '%s --portable\n' grouped_gemm attention_fwd attention_bwd)" "$build/tests/test_parity_cuda" --op
}

# NVIDIA's own libraries are not checked: dense products, and attention only by our kernels.
sanitizer() { # TOOL ARGS..
    local tool=$1
    shift
    command -v compute-sanitizer >/dev/null || { echo "skipped: there is no compute-sanitizer in PATH"; return 77; }
    limited "$op_s" compute-sanitizer --tool "$tool" "$build/tests/test_parity_cuda" --op scale >"$build/refused" 2>&1
    ! grep -iE 'device not supported|error 999|not supported' "$build/refused" ||
        { echo "skipped: compute-sanitizer $tool refuses this device"; return 77; }
    each_op "$(ops | grep -vE '^(gemm|attention_fwd|attention_bwd)$'; printf '%s --portable\n' attention_fwd attention_bwd)" \
        compute-sanitizer --tool "$tool" --error-exitcode 99 "$@" "$build/tests/test_parity_cuda" --op
}

stage_memcheck() { sanitizer memcheck --leak-check no; }
stage_racecheck() { sanitizer racecheck; }
stage_initcheck() { sanitizer initcheck; }

stage_steps() {
    need "$trainer" "$build/tests/test_model_cuda" || return
    echo "-- loss and every gradient against the CPU, with its choices of experts"
    "$build/tests/test_model_cuda"
    case $? in 0) ;; 77) return 69 ;; *) return 1 ;; esac
    if python3 -c 'import numpy' 2>/dev/null; then
        echo "-- the reference's cases, in bf16"
        python3 -B "$source_dir/tests/golden/compare.py" --probe "$build/tests/probe" --bf16 || return
    fi
    local flavour backend
    for flavour in debug tile; do
        for backend in cpu cuda; do
            echo "-- $flavour on $backend"
            "$trainer" bench step --model.path $flavour $(on $backend) --layers 0 \
                --training.seq_len 512 --training.local_batch_size 2 --training.global_batch_size 4 \
                --training.steps 30 --optimizer.lr 1e-3 || return
        done
    done
}

# One op after the other, so that none slows another, each in a process of its own. The rates of all of them together are then what
# `plan` knows of this card.
stage_bench_ops() {
    need "$build/tests/bench_device" || return
    local op code bad=() rates=$build/rates size count length from ceilings=
    size=$(sizes_that_fit 3 "12288 4096" $text_only | head -1)
    read -r _ count length <<<"${size:-3 1 4096}"
    [ "$count $length" = "4 12288" ] || echo "measured less: $count rows of $length tokens, not 4 of 12288"
    rm -rf "$rates" && mkdir -p "$rates"
    for op in $(ops | grep -v attention_bwd); do
        [ $op != attention_fwd ] || op=attention_fwd,attention_bwd # their rate is one
        from=$(card_now)
        limited "$op_s" "$build/tests/bench_device" ops $op $full --training.seq_len "$length" --training.local_batch_size "$count" \
            --seconds 0.2 $ceilings --rates "$rates/$op" >"$build/op.log" 2>&1
        code=$?
        if [ -z "$ceilings" ]; then # measured by the first process for all
            grep -E '^(device|ceilings):' "$build/op.log"
            ceilings=$(sed -nE 's/^ceilings: copy of [0-9]+ MiB ([0-9.]+) GB.*, product of .* ([0-9.]+) TFLOP.*/--ceilings \1,\2/p' "$build/op.log")
        fi
        grep -vE '^(device|model|ceilings|[0-9]+ of [0-9]+ shapes)' "$build/op.log"
        [ $code = 0 ] || bad+=("$op ($code)")
        [ $code != 69 ] || ! no_gpu || return 69
        [ $code != $stuck_exit ] || return $code
        [ "$(($(card_now) - from))" -lt 1 ] || card_line $((from + 1))
    done
    merge_rates "$rates" >"$build/rates.yaml" && cat "$build/rates.yaml"
    [ ${#bad[@]} -eq 0 ] || { echo "failed: ${bad[*]}"; return 1; }
}

# Of a rate that several files have, the first one is kept; every file has that of a copy.
merge_rates() { # FOLDER
    cat "$1"/* | awk -F: '/^#/ { if (n++) next } !/^#/ && seen[$1]++ { next } { print }'
}

# What `plan` says at 48 layers on 8 ranks of cards like this one, with the rates that bench-ops has measured on it.
planned() { # ROWS SEQ_LEN OPTIONS..
    local measured=
    [ ! -s "$build/rates.yaml" ] || measured="--measured $build/rates.yaml"
    echo "-- planned: 48 layers, 8 ranks${measured:+, with the rates of this card}"
    card_plan $measured --memory.limit 0.85 --parallelism.world_size 8 --training.seq_len "$2" \
        --training.local_batch_size "$1" --training.global_batch_size $((8 * $1)) "${@:3}" |
        grep -E '^(fits|does not fit):|^  step |^  attention goes|^rates'
}

# Runs steps at several depths, projects them to 48 layers and compares that with the goals. A goal that is missed does
# not fail the stage: someone has to judge the `goal:` lines.
bench() { # STEPS GOALS ARGS.. LAYERS ROWS SEQ_LEN
    local steps=$1 goals=$2 log=$build/bench-$$.log from code
    shift 2
    local args=("${@:1:$#-3}") size=("${@: -3}")
    from=$(card_now)
    echo "-- ${size[0]} layers, ${size[1]} rows of ${size[2]} tokens ${args[*]}"
    "$trainer" bench step $full $mode --memory.limit $card_share --layers "${size[0]}" --training.local_batch_size "${size[1]}" \
        --training.global_batch_size "${size[1]}" --training.seq_len "${size[2]}" --training.steps "$steps" --ranks 8 --settle 12 \
        "${args[@]}" 2>&1 | tee "$log"
    code=${PIPESTATUS[0]}
    card_line $((from + 1))
    [ "$code" = 0 ] || return "$code"
    awk -v goals="$goals" -f "$source_dir/tests/bench/gpu/goals.awk" "$log"
}

# Rows of text have no pictures, so the vision tower may be frozen, which leaves an 80 GB card room for a layer more.
text_only="--data.format text --freeze.pattern vision,merger"
depths="3,4,6 3,4,5 3,4 3"

# At both settings of determinism: attention's backward pass of long documents is cuDNN's only if bits may differ. The second setting
# has two depths, since the first has shown whether a third lies on their line.
stage_bench_text() {
    need "$trainer" || return
    local bench_these="bench 20 20.7,35,45 --load 3 $text_only --training.deterministic"
    planned 4 12288 $text_only
    with_sizes "$depths" "12288 8192 4096" $text_only -- $bench_these true || return
    with_sizes "3,4 3" "12288 8192 4096" $text_only -- $bench_these false
}

# Packed documents of C4.
stage_bench_c4() {
    need "$trainer" "$rows/c4-12288.rec" || return
    with_sizes "$depths" 12288 $text_only -- bench 20 20.7,35,45 --load 3 $text_only --feed.replay "$rows/c4-12288.rec"
}

# The same step at other loads of the experts, and with short documents, at one depth.
stage_bench_loads() {
    need "$trainer" || return
    local load
    for load in 1 8; do
        echo "-- busiest expert $load times the mean"
        with_sizes "4 3" "12288 8192 4096" $text_only -- bench 20 20.7,35,45 $text_only --load $load || return
    done
    echo "-- documents of 340 tokens"
    with_sizes "4 3" "12288 8192 4096" $text_only -- bench 20 20.7,35,45 $text_only --document 340 --load 3
}

images() { # SEQ_LEN
    need "$trainer" "$rows/vqa-$1.rec" || return
    planned 4 "$1"
    with_sizes "3,4,5 3,4 3" "$1" -- bench 20 13.7,30,40 --load 3 --feed.replay "$rows/vqa-$1.rec"
}

stage_bench_images_8192() { images 8192; }
stage_bench_images_12288() { images 12288; }

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
    [ -f "$source_dir/.gpu/live.tar.xz" ] || { echo "no photographs were packed (tests/gpu --prepare live): not measured"; return 0; }
    build_prepd || { echo "prepd cannot be built here (libvips is not there): not measured"; return 0; }
    unpack "$source_dir/.gpu/live.tar.xz" "$build/live" || return
    live "$model" "$length" "$build/prepd/bin/prepd" serve -c "$source_dir/configs/smoke.yaml" --quiet \
        --model.path qwen3-vl-30b-a3b --model.tokenizer "$build/live/tokenizer" \
        --data.path "$build/live/vqav2" --data.group none --training.seq_len "$length" --training.global_batch_size 4 \
        --prepd.endpoint "ipc://$build/feed.sock" --prepd.cache_dir "$build/live/cache"
}

# Trains 30 steps on the stream that the command serves at feed.sock.
live() { # MODEL SEQ_LEN COMMAND..
    local model=$1 length=$2 rows_a_step=2 layers=4 feeder status
    shift 2
    case $model in
    *debug*) ;;
    *) read -r layers rows_a_step _ < <(sizes_that_fit "4 3" "$length")
        [ -n "$layers" ] || { echo "skipped: three layers and a row of $length tokens do not fit into this card"; return 77; } ;;
    esac
    rm -f "$build/feed.sock"
    "$@" &
    feeder=$!
    "$trainer" bench step $model $mode --memory.limit $card_share --layers "$layers" --live --prepd.endpoint "ipc://$build/feed.sock" \
        --training.seq_len "$length" --training.local_batch_size "$rows_a_step" \
        --training.global_batch_size "$rows_a_step" --training.steps 30 --ranks 8 --load 3 --settle 12
    status=$?
    kill $feeder 2>/dev/null
    wait $feeder
    return $status
}

build_prepd() {
    command -v pkg-config >/dev/null || return
    PKG_CONFIG=pkg-config pkg-config --exists vips libjpeg libturbojpeg libavformat libavcodec \
        libswscale libmicrohttpd libseccomp libzmq libzstd yaml-0.1 yajl || return
    PKG_CONFIG=pkg-config cmake -S "$source_dir" -B "$build/prepd" -DTRAINER=OFF >/dev/null &&
        cmake --build "$build/prepd" -j "$(nproc)" --target prepd prepd_image >/dev/null
}

# Prints the mean loss of steps 100 to 200 of the debug model, from the lines of a run.
mean_loss() { # BACKEND SEED OPTIONS..
    "$trainer" train --model.path "$rows/debug-model" $(on "$1") --training.seed "$2" \
        --feed.replay "$rows/debug.rec" --training.local_batch_size 2 --training.global_batch_size 2 \
        --training.steps 200 --optimizer.lr 1e-3 --lr_scheduler.warmup_steps 10 --metrics.log_freq 1 \
        --job.dump_folder "$build/loss-$1-$2" "${@:3}" >"$build/loss-$1-$2.log" 2>&1 ||
        { local code=$?; tail -3 "$build/loss-$1-$2.log" >&2; return $code; }
    sed -nE 's/^step: +([0-9]+)  loss: +([0-9.]+) .*/\1 \2/p' "$build/loss-$1-$2.log" |
        awk '$1 >= 100 { sum += $2; n++ } END { if (n < 101) exit 1; printf "%.6f", sum / n }'
}

# The loss in bf16 on the GPU may differ from that in fp32 on the CPU by no more than fp32 differs between seeds, which are trained
# at the same time.
stage_loss() {
    need "$trainer" "$rows/debug.rec" "$rows/debug-model" || return
    local backend=${TESSERA_LOSS_BACKEND:-cuda} seed got want="" threads=$((($(nproc) + 2) / 3)) running=()
    rm -rf "$build"/loss-*
    got=$(mean_loss "$backend" 1) || return
    echo "$backend, seed 1: $got"
    rm -rf "$build/loss-$backend-1" # the CPU's is of the same name in a rehearsal without a GPU
    for seed in 1 2 3; do
        mean_loss cpu $seed --training.threads $threads >"$build/loss-of-$seed" &
        running+=($!)
    done
    for seed in 1 2 3; do
        wait "${running[seed - 1]}" || return
        echo "fp32, seed $seed: mean loss of steps 100 to 200: $(cat "$build/loss-of-$seed")"
        want+=" $(cat "$build/loss-of-$seed")"
    done
    awk -v got="$got" -v want="$want" 'BEGIN {
        n = split(want, x, " "); low = high = x[1]
        for (i = 2; i <= n; i++) { low = x[i] < low ? x[i] : low; high = x[i] > high ? x[i] : high }
        off = got > x[1] ? got - x[1] : x[1] - got
        printf "difference to the same seed %.6f, spread of the seeds %.6f\n", off, high - low
        exit !(off <= high - low) }'
}

# Compares what a run takes of memory with what was planned, part by part; 2 % of the total are allowed.
stage_memory() {
    need "$build/tests/bench_device" "$rows/vqa-12288.rec" || return
    local status=0 code
    echo "-- text, one document a row"
    with_sizes "4 3" "12288 8192 4096" -- memory_beside_plan || status=$?
    echo "-- pictures"
    with_sizes "4 3" 12288 -- memory_beside_plan --feed.replay "$rows/vqa-12288.rec" || { code=$?; [ $status != 0 ] || status=$code; }
    echo "-- text, all of a model on one card"
    with_sizes "6 4" 4096 $one_card -- memory_beside_plan $one_card || { code=$?; [ $status != 0 ] || status=$code; }
    return $status
}

memory_beside_plan() { # ARGS.. LAYERS ROWS SEQ_LEN
    local log=$build/memory-stage.log size=("${@: -3}") code
    "$build/tests/bench_device" memory $full $mode --memory.limit $card_share --layers "${size[0]}" --training.seq_len "${size[2]}" \
        --training.local_batch_size "${size[1]}" --training.global_batch_size "${size[1]}" --training.steps 12 "${@:1:$#-3}" |
        tee "$log"
    code=${PIPESTATUS[0]}
    [ "$code" = 0 ] || return "$code"
    sed -nE 's/^memory: all planned .*: off by ([0-9.-]+) % .*/\1/p' "$log" |
        awk '{ n++; bad += $1 > 2 || $1 < -2 } END { exit n != 1 || bad }' ||
        { echo "failed: the plan is more than 2 % off"; return 1; }
}

stage_train() {
    need "$trainer" "$rows/vqa-8192.rec" || return
    nvidia-smi --query-gpu=memory.used,memory.total --format=csv || true # before the context
    with_sizes "4 3" 8192 -- train_and_profile
}

train_and_profile() { # LAYERS ROWS SEQ_LEN
    local run=$build/train-stage code
    local batch="--memory.limit $card_share --training.seq_len $3 --training.local_batch_size $2 --training.global_batch_size $2"
    rm -rf "$run"
    "$trainer" train $full $mode --model.layers "$1" --feed.replay "$rows/vqa-8192.rec" $batch \
        --training.steps 60 --optimizer.lr 1e-4 --lr_scheduler.warmup_steps 10 \
        --job.dump_folder "$run" 2>&1 | tee "$build/train-stage.log"
    code=${PIPESTATUS[0]}
    [ "$code" = 0 ] || return "$code"
    # The plan and the scratch memory must be within 2 % of what was taken.
    sed -nE 's/^memory: planned .*: off by ([0-9.-]+) % .*/\1/p' "$build/train-stage.log" |
        awk '{ n++; bad += $1 > 2 || $1 < -2 } END { exit n != 1 || bad }' ||
        { echo "failed: the memory plan is more than 2 % off"; return 1; }
    "$trainer" train $full $mode --model.layers "$1" --feed.replay "$rows/vqa-8192.rec" $batch \
        --training.steps 4 --metrics.log_freq 1 --job.dump_folder "$run/profile" --profile || return
    sed -nE 's/.*"patches": ?([0-9]+).*/patches of a step: \1/p' "$run/profile/metrics.jsonl" | tail -1
}

torch_there() {
    command -v nvidia-smi >/dev/null || { echo "no NVIDIA driver here"; return 69; }
    unset LD_LIBRARY_PATH # PyTorch brings its own libraries
    python3 -c 'import torch, transformers' 2>/dev/null ||
        { echo "skipped: no torch and transformers here, so there is nothing to compare with"; return 77; }
}

# A whole step of the same few layers in transformers, as a user would run it, beside ours in the same minute.
stage_torch() {
    need "$trainer" || return
    (torch_there) || return
    with_sizes 3 "12288 8192 4096" $text_only -- beside_transformers
}

beside_transformers() { # LAYERS ROWS SEQ_LEN
    local log=$build/torch-stage.log how code status=0 ours memory from
    from=$(card_now)
    echo "-- ours, $1 layers, $2 rows of $3 tokens"
    "$trainer" bench step $full $mode $text_only --memory.limit $card_share --layers "$1" --training.local_batch_size "$2" \
        --training.global_batch_size "$2" --training.seq_len "$3" --training.steps 8 --training.deterministic false 2>&1 | tee "$log"
    code=${PIPESTATUS[0]}
    [ "$code" = 0 ] || return "$code"
    read -r ours memory < <(sed -nE 's/^depth: .* \(median ([0-9.]+),.* memory: ([0-9.]+) GiB.*/\1 \2/p' "$log")
    for how in eager compiled; do
        (torch_there && limited "$(scaled 80)" python3 -B "$source_dir/tests/bench/gpu/torch_step.py" "$@" $how "$ours" "$memory")
        code=$?
        [ $code != $stuck_exit ] || return $code
        [ $code = 0 ] || { echo "failed: transformers $how ($code)"; status=1; }
    done
    card_line $((from + 1))
    return $status
}

# Single layers, and the vision tower, beside those of bench-text and train.
stage_torch_layers() {
    torch_there || return
    TESSERA_GPU_REPORTS=$out python3 -B "$source_dir/tests/bench/gpu/torch_layer.py"
}
