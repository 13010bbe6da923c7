# sizes.sh: how much is measured on the card that is here, so that nothing fails for lack of memory. tests/gpu's stages source it.
#
# `trainer plan` says whether a depth, rows and a length fit into the memory that is free. The first that fits is measured; if the
# card refuses it all the same, the next one is. Who measures less than on an H200 says so in a line "measured less: ..".

card_share=0.92 # of what is free; a bench leaves less room than a run does

# The card is asked, or TESSERA_GPU_DEVICE names another (h100, h200, bytes), for rehearsals.
card_plan() { # OPTIONS..
    "$trainer" plan --shared --model.path qwen3-vl-30b-a3b $mode $switches --memory.limit $card_share \
        ${TESSERA_GPU_DEVICE:+--device $TESSERA_GPU_DEVICE} "$@"
}

card_holds() { # LAYERS ROWS SEQ_LEN OPTIONS..
    local answer # all of it: grep -q would close the pipe, and a program that cannot write fails
    answer=$(card_plan --model.layers "$1" --training.local_batch_size "$2" --training.global_batch_size "$2" \
        --training.seq_len "$3" "${@:4}" 2>/dev/null) && [[ $answer == *$'\nfits: '* ]]
}

# Prints lines "LAYERS ROWS SEQ_LEN", the best first, of all that fit: long rows, then several depths, through which a line can be
# laid, then many rows.
sizes_that_fit() { # DEPTHS SEQ_LENS OPTIONS..
    local depths several rows length
    for length in $2; do
        for several in yes no; do
            for rows in 4 2 1; do
                for depths in $1; do
                    [[ $depths == *,* && $several = yes || $depths != *,* && $several = no ]] || continue
                    ! card_holds "${depths##*,}" $rows "$length" "${@:3}" || echo "$depths $rows $length"
                done
            done
        done
    done
}

# Whether a program failed because it ran out of memory (71), or was refused because its own plan says so (78). Either exit code can
# have another cause.
lacked_memory() { # CODE LOG
    [ "$1" = 71 ] && grep -qiE 'out of memory|no memory' "$2" || { [ "$1" = 78 ] && grep -q 'memory.limit allows' "$2"; }
}

# Calls a command with the best sizes; after a lack of memory with the next ones.
with_sizes() { # DEPTHS SEQ_LENS OPTIONS -- COMMAND..
    local depths=$1 lengths=$2 options=() list size code best
    shift 2
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    best="${depths%% *} 4 ${lengths%% *}"
    list=$(sizes_that_fit "$depths" "$lengths" "${options[@]}")
    [ -n "$list" ] || { echo "measured less: nothing, since not even ${depths##* } layers and one row of ${lengths##* } tokens fit"
        card_plan --model.layers "${depths##*[ ,]}" --training.local_batch_size 1 --training.global_batch_size 1 \
            --training.seq_len "${lengths##* }" "${options[@]}" 2>&1 | grep -E '^(does not fit|.*error)'; return 77; }
    while read -r size; do
        [ "$size" = "$best" ] || echo "measured less: layers, rows and tokens are $size, not $best, which this card cannot hold"
        "$@" $size </dev/null 2>&1 | tee "$build/sized.log"
        code=${PIPESTATUS[0]}
        lacked_memory $code "$build/sized.log" || return $code
    done <<<"$list"
    echo "measured less: nothing, since memory ran out at every size"
    return 77
}
