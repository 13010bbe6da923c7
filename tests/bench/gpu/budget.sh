# budget.sh: the stages that fit into a budget, in their order, and a summary that is whole at any moment. tests/gpu sources it.
#
# Each row: stage, its place when something has to be left out (the highest goes first), the seconds that it is expected to
# take on one Hopper GPU, and its limit. The seconds are estimates but for the first stages, which an H200 has run: steps by
# what trainer plan predicts, settling of the experts' load (a depth of three layers and 37 steps took 18 s), first values of
# parameters (a second in benches; 20 ns each, over 16 processors, in training), contexts of processes.
stage_rows() {
    cat <<'ROWS'
versions 1 2 40
build 2 6 300
smoke 3 15 200
parity 4 30 240
steps 5 30 150
one-card 8 20 120
bench-ops 7 50 240
bench-text 6 120 400
bench-images-8192 8 145 330
memory 10 60 200
torch 9 110 260
feed 13 60 180
loss 14 15 150
memcheck 15 90 200
racecheck 17 45 200
initcheck 18 90 200
nccl 11 5 120
ranks-1 16 40 200
rank-faults 19 60 200
ranks-2 22 40 200
ranks-3 23 40 200
ranks-4 24 40 200
ranks-5 25 40 200
ranks-6 26 40 200
bench-images-12288 21 200 400
bench-c4 20 80 300
train 27 90 200
bench-loads 28 95 300
torch-layers 29 60 200
ROWS
}

closing_s=15 # kept for the summary
# A rehearsal (tests/flow/gpu_plan.py) has programs that take hundredths of the time, and so may they.
scaled() { echo $((($1 * ${TESSERA_GPU_TIME_PERCENT:-100} + 99) / 100)); } # SECONDS

stages=
declare -A stage_place stage_seconds stage_limit
while read -r stage place seconds limit; do
    stages+=${stages:+ }$stage
    stage_place[$stage]=$place stage_seconds[$stage]=$(scaled "$seconds") stage_limit[$stage]=$(scaled "$limit")
done < <(stage_rows)

declare -A plan_result plan_seconds
plan_stages=() # those of this plan, in order

# Writes summary.txt: a line for every stage, what the stages found, and whether the plan goes on.
summarise() { # STATE
    local stage file
    {
        [ -z "$remedy" ] || echo "$remedy"
        echo "tests/gpu: $plan_title"
        for stage in "${plan_stages[@]}"; do
            printf '%-20s %-44s %s\n' "$stage" "${plan_result[$stage]:-to come}" "${plan_seconds[$stage]-}"
        done
        echo
        for stage in "${plan_stages[@]}"; do
            file=$(find "$out" -name "*_$stage.txt" -newer "$out/began" -print -quit)
            [ -n "$file" ] || continue
            grep -hE '^(versions|smoke|with|goal|projected|check|measured less|failed|again alone|difference|memory: all|ratio|gradients|ended|process)[: ]' \
                "$file" | sed "s/^\($stage: \)\?/$stage: /" | head -14
            needs_no_gpu "$stage" || [[ ${plan_result[$stage]-} == skipped* ]] || grep -h '^card: ' "$file" | tail -1 | sed "s/^/$stage: /"
        done
        echo
        echo "$1"
    } >"$out/summary.part" && mv "$out/summary.part" "$out/summary.txt"
}

# Prints "STAGE SECONDS": the first in order among the most valuable of those to come whose seconds fit together, and how many seconds
# the more valuable ones among these still need after it, which it must leave them.
next_stage() { # SECONDS_LEFT
    local left=$1 stage place seconds reserved=0
    local -A fits=()
    while read -r place seconds stage; do
        [ "$seconds" -le "$left" ] || continue
        left=$((left - seconds)) fits[$stage]=$reserved
        reserved=$((reserved + seconds))
    done < <(for stage in "${plan_stages[@]}"; do
        [ -n "${plan_result[$stage]-}" ] || echo "${stage_place[$stage]} ${stage_seconds[$stage]} $stage"
    done | sort -n)
    for stage in "${plan_stages[@]}"; do
        [ -z "${fits[$stage]-}" ] || { echo "$stage ${fits[$stage]}"; return; }
    done
}

# Runs the plan. Nothing that a stage does ends it, except a process that cannot be killed: then the GPU is of no more use.
run_plan() { # MINUTES STAGE..
    local minutes=$1 deadline stage reserved limit left code began
    shift
    plan_stages=("$@")
    mkdir -p "$out"
    touch "$out/began"
    deadline=$((EPOCHSECONDS + $(scaled $((minutes * 60))) - spent_s))
    plan_title="$(date -u +%Y-%m-%dT%H:%MZ), $minutes minutes, $spent_s s of them spent before; $the_card, tree $the_tree"
    summarise "under way"
    echo $$ >"$out/pid"
    trap 'summarise "closed: the plan was ended by a signal"; exit 1' TERM INT HUP
    while :; do
        left=$((deadline - EPOCHSECONDS - $(scaled $closing_s)))
        read -r stage reserved < <(next_stage $left)
        [ -n "$stage" ] || break
        limit=${stage_limit[$stage]}
        [ "$limit" -le $((left - reserved)) ] || limit=$((left - reserved))
        plan_result[$stage]="under way since $(date -u +%H:%M:%S), at most $limit s"
        summarise "under way: $left s are left"
        began=$SECONDS
        limit_s=$limit run_stage "$stage"
        code=$?
        plan_seconds[$stage]=$((SECONDS - began))
        plan_result[$stage]=$said
        summarise "under way"
        [ $code != $stuck_exit ] || { close_plan "closed: $stage has left a process that cannot be ended" "the GPU is held"; return 1; }
        # Without programs or a GPU, only what needs neither can still say something.
        case $stage:$code in
        build:0 | versions:0) ;;
        build:*) close_plan "closed: there is nothing to run" "no programs"; return 1 ;;
        esac
    done
    close_plan "closed: all that fits has been run"
}

# Stages that were not run are left out, for want of time if there is no other reason.
close_plan() { # STATE [REASON]
    local stage
    for stage in "${plan_stages[@]}"; do
        plan_result[$stage]=${plan_result[$stage]:-"left out: ${2-takes about ${stage_seconds[$stage]} s, no time}"}
    done
    summarise "$1"
}
