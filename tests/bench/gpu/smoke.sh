# smoke.sh: five steps of two small models, before anything is measured; and if they fail, which fast path they fail with.
# tests/gpu's stages source it.

switch_file=$build/switches # the options with which later stages run
switches=$(cat "$switch_file" 2>/dev/null)
smoke_s=$(scaled 40)

# The debug model sees pictures; the tile model has widths that Hopper's kernels take.
smoke_once() { # OPTIONS..
    local code
    [ ! -e "$rows/debug.rec" ] ||
        limited $smoke_s "$trainer" train --model.path "$rows/debug-model" --training.backend cuda \
            --feed.replay "$rows/debug.rec" --training.local_batch_size 2 --training.global_batch_size 2 --training.steps 5 \
            --metrics.log_freq 1 --job.dump_folder "$build/smoke-run" "$@" >"$build/smoke.log" 2>&1 || return
    limited $smoke_s "$trainer" bench step --model.path tile --training.backend cuda --training.seq_len 512 \
        --training.local_batch_size 2 --training.global_batch_size 2 --training.steps 5 "$@" >>"$build/smoke.log" 2>&1
}

smoke() { # NAME OPTIONS..
    local name=$1 code
    shift
    rm -rf "$build/smoke-run"
    smoke_once "$@"
    code=$?
    [ $code = 0 ] && { echo "with $name: ok"; return 0; }
    echo "with $name: failed ($code): $(grep -vE '^(with|\[)' "$build/smoke.log" | grep -iE 'error|ended|refus|Xid|nan|not finite|process' | tail -1 | cut -c1-200)"
    return $code
}

# Every fast path is on; then each is off alone, and then all. What works first is what the later stages run with.
stage_smoke() {
    need "$trainer" || return
    local name options code
    rm -f "$switch_file"
    smoke "every fast path on"
    code=$?
    grep -E '^(step|depth|device|.*device ):? ' "$build/smoke.log"
    [ $code != 69 ] || ! no_gpu || return 69
    case $code in 0 | $stuck_exit) return $code ;; esac
    cat "$build/smoke.log"
    while IFS='|' read -r name options; do
        smoke "$name" $options
        code=$?
        [ $code != $stuck_exit ] || return $code
        [ $code = 0 ] && [ ! -e "$switch_file" ] && echo "$options" >"$switch_file"
    done <<'SWITCHES'
our attention|--training.attention portable
the portable experts|--training.experts portable
no CUDA graphs|--cuda_graph.scope off
nothing deterministic|--training.deterministic false
none of them|--training.attention portable --training.experts portable --cuda_graph.scope off
SWITCHES
    if [ -e "$switch_file" ]; then
        echo "failed: later stages run with $(cat "$switch_file")"
    else
        echo "failed: with every fast path off too"
    fi
    return 1
}
