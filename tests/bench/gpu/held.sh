# held.sh: start, wait, status and fetch, for a machine that runs one command at a time and is taken away when it has none.
# tests/gpu sources it. The plan itself runs in a process session of its own (budget.sh) and outlives the command that began it.

plan_runs() { [ -f "$out/pid" ] && [ -n "$(living "$(cat "$out/pid")")" ]; }

held_start() { # MINUTES STAGE..
    local pid i
    plan_runs && { echo "a plan is under way already: tests/gpu wait, status, fetch"; return 1; }
    rm -rf "$out" && mkdir -p "$out"
    TESSERA_GPU_SPENT_S=$spent_s setsid bash tests/gpu --plan --out "$out" "$@" >"$out/log" 2>&1 </dev/null &
    pid=$!
    for ((i = 0; i < 600; i++)); do
        [ ! -f "$out/pid" ] || { echo "the plan has begun: process $pid, reports in $out"; return 0; }
        nap 0.1
    done
    echo "the plan has not begun:"
    cat "$out/log"
    return 1
}

# Returns when the plan has ended, or after this many seconds; until then prints a line for each stage that ends.
held_wait() { # SECONDS
    local until=$((EPOCHSECONDS + $1)) shown=0 lines
    [ -f "$out/pid" ] || { echo "no plan has begun: tests/gpu start"; return 1; }
    while plan_runs && [ "$EPOCHSECONDS" -lt "$until" ]; do
        nap 1
        lines=$(grep -cE '^(== |result: )' "$out/log")
        [ "$lines" -eq "$shown" ] || grep -E '^(== |result: )' "$out/log" | tail -n $((lines - shown))
        shown=$lines
    done
    held_status
}

# Prints the summary. Returns 0 if the plan has ended, 75 while it runs.
held_status() {
    [ -f "$out/summary.txt" ] || { echo "no plan has begun: tests/gpu start"; return 1; }
    cat "$out/summary.txt"
    plan_runs && return 75
    grep -q '^closed: ' "$out/summary.txt" ||
        echo "the plan is gone and did not close its summary: it was killed, or the machine was started anew"
}

# Packs everything so far into FOLDER/gpu-plan.tar.xz (.gz without xz), and puts the summary beside it. Of an archive that would
# be too large the largest files stay here; their names are in the summary.
held_fetch() { # FOLDER
    local to=$1 archive=$1/gpu-plan.tar.gz pack=gzip largest left_out=
    [ -d "$out" ] || { echo "no plan has begun: tests/gpu start"; return 1; }
    mkdir -p "$to" || return
    command -v xz >/dev/null && pack="xz -T0 -2" archive=$1/gpu-plan.tar.xz
    while :; do
        (cd "$out" && find . -type f ! -name pid -print0 | grep -zvxF -e ./ ${left_out:+$(printf -- ' -e %s' $left_out)} |
            tar --null -cf - -T -) | $pack >"$archive" || return
        [ "$(stat -c %s "$archive")" -gt "$archive_bytes" ] || break
        largest=$(cd "$out" && find . -type f ! -name summary.txt -printf '%s %p\n' |
            grep -vF -e ' ./ ' ${left_out:+$(printf -- ' -e %s' $left_out)} | sort -rn | head -1 | cut -d' ' -f2-)
        [ -n "$largest" ] || { echo "the summary alone is too large"; return 1; }
        left_out+=" $largest"
    done
    { cat "$out/summary.txt" 2>/dev/null || echo "there is no summary yet"
      [ -z "$left_out" ] || echo "too large to fetch:$left_out"; } >"$to/summary.txt"
    echo "$archive: $(stat -c %s "$archive") bytes${left_out:+, without$left_out}"
}
archive_bytes=${TESSERA_GPU_ARCHIVE_BYTES:-$((16 << 20))}
