# ranks_on_gpus.sh: compares several ranks on GPUs with one rank. It is sourced by tests/gpu for its stages, and by
# ../../parallel/shared_gpu. It needs build and rows.
#
# With TESSERA_RANKS=emulated, the emulated device (tests/emulated) takes the place of CUDA and the shim (tests/nccl) that
# of NCCL, so that these lines can be tested on any machine.

kept=$rows/ranks            # what layouts.py --keep has written
work=$build/ranks
parts=6                     # stages among which the layouts are divided
emulated=${TESSERA_RANKS:+_emulated}
parity=$build/tests/ranks_parity
bf16_gradient=0.02          # share of a tensor's norm that is allowed beyond twice the error of one rank in bf16
bf16_loss=0.02
[ -z "$emulated" ] || export LD_LIBRARY_PATH=$build/tests/nccl_shim:${LD_LIBRARY_PATH-}

# Lets Open MPI run more ranks than cores, and as root in a container.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1 PMIX_MCA_pcompress_base_silence_warning=1

# Returns 77 if what several ranks need is missing here.
ranks_there() {
    local name
    mkdir -p "$work"
    for name in "$parity" "$kept/layouts"; do
        [ -e "$name" ] || { echo "skipped: $name is not there (Open MPI when built; tests/gpu --prepare)"; return 77; }
    done
    command -v mpirun >/dev/null || { echo "skipped: no mpirun in PATH"; return 77; }
}

gpus() {
    if [ -n "$emulated" ]; then echo 4; else nvidia-smi -L 2>/dev/null | grep -c '^GPU '; fi
}

# Makes the losses and gradients of one rank, unless they are there, and prints the file's name.
one_rank() { # BACKEND FLAVOUR OPTIONS
    local file program=$parity words
    file=$work/$1-$2-$(printf %s "$3" | cksum | cut -d' ' -f1)
    [ "$1" = cpu ] || program+=$emulated
    if [ ! -f "$file" ]; then
        eval "words=($3)"
        "$program" write "$file.part" -c "$kept/$2.yaml" --training.backend "$1" "${words[@]}" >&2 || return
        mv "$file.part" "$file"
    fi
    printf %s "$file"
}

# If each row's arithmetic is that of one rank, only the order of sums in float differs: gradients and the first loss
# agree with one GPU to 1e-5, and later losses to 1e-2, since weights are rounded to bf16. If rows or matrices are cut,
# sums are rounded to bf16 at other places: then the result may be as far from float on the CPU as one GPU is, and a
# little further.
compare_layout() { # ENGINE SCOPE RANKS SAME NAME FLAVOUR ALONE OPTIONS
    local exact coarse words began=$SECONDS said code
    coarse=$(one_rank cuda "$6" "$7") || return
    eval "words=($8)"
    set -- "$@" -c "$kept/$6.yaml" --training.backend cuda --comm.engine "$1" --cuda_graph.scope "$2" "${words[@]}"
    if [ "$4" = 1 ]; then
        said=$(mpirun -np "$3" "$parity$emulated" compare "$coarse" 1e-5 1e-2 "${@:9}" 2>&1)
    else
        exact=$(one_rank cpu "$6" "$7") || return
        said=$(RANKS_PARITY_BESIDE=$coarse mpirun -np "$3" "$parity$emulated" compare "$exact" \
            $bf16_gradient $bf16_loss "${@:9}" 2>&1)
    fi
    code=$?
    printf '%-62s %s %s: %s (%s s)\n' "$5" "$1" "$2" "$(grep -E '^(gradients|losses)' <<<"$said" | paste -sd';')" \
        $((SECONDS - began))
    [ $code = 0 ] || printf '%s\n' "$said"
    return $code
}

# Runs the layouts of the table that `wanted N RANKS` takes, at least one. Returns 69 if the first finds no GPU.
each_layout() { # ENGINE SCOPE WANTED
    local ranks same name flavour alone options bad=() n=0 taken=0 code
    while IFS='|' read -r ranks same name flavour alone options; do
        n=$((n + 1))
        "$3" $n "$ranks" || continue
        taken=$((taken + 1))
        compare_layout "$1" "$2" "$ranks" "$same" "$name" "$flavour" "$alone" "$options" </dev/null
        code=$?
        [ $code != 69 ] || return 69
        [ $code = 0 ] || bad+=("$name;")
    done <"$kept/layouts"
    [ $taken -gt 0 ] || { echo "failed: $3 takes no layout of $kept/layouts"; return 1; }
    [ ${#bad[@]} -eq 0 ] || { echo "failed: ${bad[*]}"; return 1; }
}

in_part() { [ $(($1 % parts)) = $((part % parts)) ]; }
on_gpus() { [ "$2" -le "$n_gpus" ]; }

# Ranks that share one GPU and communicate through host memory, on one part of all layouts.
stage_ranks() { # PART
    local part=$1 exact
    ranks_there || return
    exact=$(one_rank cpu small "--training.steps 5") || return
    echo "-- two ranks on CPUs, so that mpirun is known to work here"
    mpirun -np 2 "$parity" compare "$exact" 1e-5 1e-4 -c "$kept/small.yaml" --training.backend cpu \
        --training.steps 5 --parallelism.data_parallel_shard_degree 2 || return
    echo "-- on one GPU, part $part of $parts"
    each_layout mpi off in_part
}
stage_ranks_1() { stage_ranks 1; }
stage_ranks_2() { stage_ranks 2; }
stage_ranks_3() { stage_ranks 3; }
stage_ranks_4() { stage_ranks 4; }
stage_ranks_5() { stage_ranks 5; }
stage_ranks_6() { stage_ranks 6; }

# NCCL itself, with as many ranks as there are GPUs, which may be one.
stage_nccl() {
    local n_gpus scope code
    [ -e "$build/tests/nccl_alone" ] || { echo "skipped: no nccl.h when this was built (toolkit, wheels, NCCL_HOME)"; return 77; }
    "$build/tests/nccl_alone" ${TESSERA_RANKS:-cuda}
    code=$?
    [ $code != 77 ] || [ -n "$(gpus | grep -vx 0)" ] || return 69
    [ $code = 0 ] || return $code
    n_gpus=$(gpus)
    echo "$n_gpus GPUs"
    [ "$n_gpus" -gt 1 ] || { echo "layouts by NCCL: skipped, they need two GPUs"; return 0; }
    ranks_there || return
    for scope in off step; do
        each_layout nccl $scope on_gpus || return
    done
}

# Prints the process of rank R of the run with this folder.
rank_process() { # R FOLDER
    local p
    for p in /proc/[0-9]*; do
        grep -qzxE "(OMPI_COMM_WORLD_)?RANK=$1" "$p/environ" 2>/dev/null &&
            grep -qzxF "$2" "$p/cmdline" 2>/dev/null && { echo "${p#/proc/}"; return 0; }
    done
    return 1
}

# Sends a signal to rank 1 of a run: the run must end within a minute with an exit code, and the log of the others must
# name rank 1.
lose() { # ENGINE SIGNAL
    local run=$work/lost-$1-$2 program=$build/bin/trainer pid lost code i
    [ -z "$emulated" ] || program=$build/tests/trainer_emulated
    rm -rf "$run"
    "$program" train --nproc 2 --model.path "$rows/debug-model" --feed.replay "$rows/debug.rec" \
        --training.backend cuda --comm.engine "$1" --training.local_batch_size 1 --training.global_batch_size 2 \
        --training.steps 1000000 --metrics.log_freq 1 --comm.heartbeat_timeout_seconds 5 --checkpoint.enable false \
        --job.dump_folder "$run" >"$run.log" 2>&1 &
    pid=$!
    for ((i = 0; i < 1200; i++)); do # until 12 steps are done, in which each bucket has come twice
        [ "$(cat "$run/metrics.jsonl" 2>/dev/null | wc -l)" -lt 12 ] || break
        kill -0 $pid 2>/dev/null || { wait $pid; code=$?; tail -3 "$run.log"; return $code; }
        sleep 0.1
    done
    lost=$(rank_process 1 "$run") || { echo "no rank 1"; kill $pid; wait $pid; return 1; }
    sleep 0.$((RANDOM % 900 + 100)) # so that the signal comes anywhere in a step
    kill -"$2" "$lost"
    for ((i = 0; i < 600; i++)); do
        kill -0 $pid 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL "$lost" 2>/dev/null
    kill -0 $pid 2>/dev/null && { echo "SIG$2: the run continues for a minute"; kill -KILL $pid; return 1; }
    wait $pid
    code=$?
    printf 'SIG%s by %s: exit code %d after %d.%d s, ' "$2" "$1" $code $((i / 10)) $((i % 10))
    [ $code -ne 0 ] && grep -m1 -o 'the run ends: rank 1 (.*' "$run/log/rank-0.log" ||
        { echo "and rank 0 does not say so"; tail -5 "$run.log"; return 1; }
}

# Killed and stopped ranks. With one GPU, ranks communicate through host memory and steps are not captured; with more GPUs
# ranks are also lost inside captured steps.
stage_rank_faults() {
    local engine signal status=0 n_gpus
    ranks_there || return
    need "$build/bin/trainer" "$rows/debug.rec" || return
    n_gpus=$(gpus)
    for engine in mpi nccl; do
        [ $engine = mpi ] || [ "${n_gpus:-0}" -gt 1 ] ||
            { echo "inside captured steps: skipped, NCCL needs a GPU per rank, here are ${n_gpus:-0}"; continue; }
        for signal in KILL STOP KILL STOP; do
            lose $engine $signal || { status=$?; [ $status != 69 ] || return 69; }
        done
    done
    return $status
}
