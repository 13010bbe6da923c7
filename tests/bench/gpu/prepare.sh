#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# prepare.sh: fills .gpu/ with what a bare GPU machine lacks: the programs (built.tar.xz), libraries and headers of Debian's
# packages (prefix.tar.xz), and recordings of rows with real photographs and of C4 (rows.tar.xz). Needs Debian's package
# mirror, nvcc, a build (build/bin, build/tests), Python and ../shared (or TESSERA_SHARED).
#
#   tests/gpu --prepare            all of it
#   tests/gpu --prepare programs   the programs alone, after a change of the sources
#   tests/gpu --prepare live       all of it, and photographs for a machine that can build prepd and so decode (live.tar.xz)
set -euo pipefail
[ -d common ] && [ -d trainer ] || { echo "prepare: run it as tests/gpu --prepare" >&2; exit 64; }
tree=$PWD
shared=${TESSERA_SHARED:-$(dirname "$tree")/shared}
photographs=8 # nearly half a MiB each
mkdir -p .gpu
[ $# -gt 0 ] && [ "$1" = programs ] || find .gpu -mindepth 1 -delete
work=$(mktemp -d .gpu/work-XXXXXX)
trap 'rm -rf "$work"' EXIT

. tests/bench/gpu/libraries.sh
. tests/bench/gpu/room.sh

# Records rows of real photographs. The file holds each picture once, however many samples show it.
record() { # NAME SEQ_LEN ROWS STEPS
    build/bin/prepd record -c configs/smoke.yaml --model.path qwen3-vl-30b-a3b \
        --model.tokenizer "$shared/data/tokenizer" --data.path "$work/vqav2" --data.group none \
        --training.seq_len "$2" --training.global_batch_size "$3" \
        --prepd.image_codec zstd --prepd.endpoint "ipc://$PWD/$work/d.sock" \
        --prepd.cache_dir "$PWD/$work/cache" --steps "$4" --overwrite --out "$work/rows/$1.rec"
}

# Records packed documents of C4.
record_text() { # NAME SEQ_LEN ROWS STEPS
    local text=$work/c4
    mkdir -p "$text"
    gzip -dc "$shared"/data/text/c4-train.*.json.gz >"$text/c4.jsonl"
    build/bin/prepd record -c configs/smoke.yaml --model.path qwen3-vl-30b-a3b \
        --model.tokenizer "$shared/data/tokenizer" --data.format text --data.path "$text/c4.jsonl" --data.group none \
        --training.seq_len "$2" --training.global_batch_size "$3" \
        --prepd.endpoint "ipc://$PWD/$work/d.sock" --prepd.cache_dir "$PWD/$work/cache" \
        --steps "$4" --overwrite --out "$work/rows/$1.rec"
}

# Records generated pictures for a small model, which a CPU can train too, and copies its folder.
record_debug() {
    build/bin/prepd synth --out "$work/synth" --images 400 --seed 1 --sizes small
    build/bin/prepd record -c configs/smoke.yaml --model.path "$work/synth/model" \
        --data.path "$work/synth" --data.group none --training.seq_len 256 --training.global_batch_size 2 \
        --prepd.endpoint "ipc://$PWD/$work/d.sock" --prepd.cache_dir "$PWD/$work/cache" \
        --prepd.image_codec zstd --steps 16 --overwrite --out "$work/rows/debug.rec"
    cp -r "$work/synth/model" "$work/rows/debug-model"
}

# Keeps the models, rows and layouts for the tests of several ranks.
keep_ranks() {
    TESSERA_BIN=build/bin TESSERA_TESTS=build/tests python3 -B tests/parallel/layouts.py --keep "$work/rows/ranks"
}

# Packs the data set of the photographs and the tokenizer.
keep_photographs() {
    local to=$work/live
    mkdir -p "$to/tokenizer"
    cp -r "$work/vqav2" "$to/vqav2"
    cp "$shared"/data/tokenizer/{tokenizer.json,*processor_config.json} "$to/tokenizer"
    tar -C "$to" -cf - . | xz -T0 -6 >.gpu/live.tar.xz
}

record_rows() {
    mkdir -p "$work/rows"
    # Enough samples for more rows than are recorded, so that none of them is the last one, which is not full.
    python3 -B tests/bench/gpu/photographs.py "$shared/data/vqav2" "$work/vqav2" $photographs 1200
    record vqa-8192 8192 4 8
    record vqa-12288 12288 4 6
    record_text c4-12288 12288 4 6
    record_debug
    keep_ranks
    # The recordings share their photographs, which xz finds in a window as large as all of them.
    tar -C "$work/rows" -cf - . | xz -9 >.gpu/rows.tar.xz
}

# Compiles the programs with those libraries, as the GPU machine would.
build_programs() {
    local source_dir=$tree build=$tree/build-gpu-packed prefix=$tree/build-gpu-packed/prefix rows=$tree/build-gpu-packed/rows
    . tests/bench/gpu/built.sh
    . tests/bench/gpu/environment.sh
    compile >"$work/compile.log" 2>&1 || { tail -20 "$work/compile.log"; echo "prepare: the programs do not compile" >&2; exit 1; }
    pack_built .gpu/built.tar.xz
}

if [ "${1-}" != programs ]; then
    # What is missing is told before anything is fetched.
    [ -x build/bin/prepd ] && [ -x build/tests/mixed_rows ] || { echo "prepare: no build/bin/prepd or no tests; build the tree first" >&2; exit 69; }
    [ -d "$shared/data/vqav2" ] || { echo "prepare: no $shared/data/vqav2; set TESSERA_SHARED" >&2; exit 66; }
    collect_libraries
    lay_out
    record_rows
    [ "${1-}" != live ] || keep_photographs
fi
build_programs
tests/gpu --tree >.gpu/tree
rm -rf "$work"
du -sh .gpu/*
check_room
