# one_card.sh: trains a small model as one card does it, whole or by adapters, and beside it on the CPU. tests/gpu's stages source it.

# A large model fits on one card with these.
one_card="--optimizer.states int8 --training.master bf16 --optimizer.in_backward true"

# Prints the first loss of a run and the mean of its last five, or what it said if it failed.
one_card_losses() { # NAME BACKEND OPTIONS..
    local log=$build/one-card-$1-$2.log run=$build/one-card-run-$1-$2 code
    rm -rf "$run"
    "$trainer" train --model.path "$rows/debug-model" $(on "$2") --feed.replay "$rows/debug.rec" \
        --training.local_batch_size 2 --training.global_batch_size 2 --training.steps 20 --optimizer.lr 1e-3 \
        --metrics.log_freq 1 --checkpoint.enable false --job.dump_folder "$run" "${@:3}" >"$log" 2>&1 ||
        { code=$?; tail -3 "$log" >&2; return $code; }
    sed -nE 's/^step: +[0-9]+  loss: +([0-9.]+) .*/\1/p' "$log" |
        awk 'NR == 1 { first = $1 } { last[NR % 5] = $1 } END {
            if (NR < 20) exit 1
            printf "%s %.4f", first, (last[0] + last[1] + last[2] + last[3] + last[4]) / 5 }'
}

# The GPU must learn, and to a loss that is the CPU's within a twentieth.
stage_one_card() {
    need "$trainer" "$rows/debug.rec" "$rows/debug-model" || return
    local backend=${TESSERA_LOSS_BACKEND:-cuda} name options ours theirs status=0
    while IFS='|' read -r name options; do
        ours=$(one_card_losses "$name" "$backend" $options) || return
        theirs=$(one_card_losses "$name-beside" cpu $options) || return
        awk -v name="$name" -v ours="$ours" -v theirs="$theirs" 'BEGIN {
            split(ours, x, " "); split(theirs, y, " ")
            off = 100 * (x[2] / y[2] - 1)
            printf "check: %s: loss %s -> %s, on the CPU %s -> %s: %.2f %% apart\n", name, x[1], x[2], y[1], y[2], off
            exit !(x[2] < x[1] && off < 5 && off > -5) }' || { echo "failed: $name"; status=1; }
    done <<MODES
whole|$one_card
states|--optimizer.states int8
adapters|--lora.rank 8
MODES
    return $status
}
