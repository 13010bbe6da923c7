#!/usr/bin/env bash
# prepare.sh: fills .gpu/ with what a bare GPU machine lacks: the programs (built.tar.xz), libraries and headers of Debian's
# packages (prefix.tar.xz), and recordings of rows with real photographs and of C4 (rows.tar.xz). Needs Debian's package mirror, nvcc, a build (build/bin, build/tests),
# Python and ../shared (or TESSERA_SHARED).
#
#   tests/gpu --prepare            all of it
#   tests/gpu --prepare programs   the programs alone, after a change of the sources
#   tests/gpu --prepare live       all of it, and photographs for a machine that can build prepd and so decode (live.tar.xz)
set -euo pipefail
[ -d common ] && [ -d trainer ] || { echo "prepare: run it as tests/gpu --prepare" >&2; exit 64; }
tree=$PWD
shared=${TESSERA_SHARED:-$(dirname "$tree")/shared}
room_mib=40 # of 64 that may travel
samples=18 # samples of the data set that are packed with their pictures
mkdir -p .gpu
[ $# -gt 0 ] && [ "$1" = programs ] || find .gpu -mindepth 1 -delete
work=$(mktemp -d .gpu/work-XXXXXX)
trap 'rm -rf "$work"' EXIT

# The packages that the build asks pkg-config for, and pkg-config itself.
packages="libzmq3-dev libzmq5 libzstd-dev libzstd1 libyaml-dev libyaml-0-2 libyajl-dev libyajl2
          libpcre2-dev libpcre2-8-0 libutf8proc-dev libutf8proc2 libxxhash-dev libxxhash0
          libopenblas-pthread-dev libopenblas0-pthread libcmocka-dev libcmocka0
          libpng-dev libpng16-16
          pkgconf-bin libpkgconf3
          libopenmpi-dev libopenmpi3 openmpi-bin libpmix2"
# Only the parts of Open MPI that ranks on one machine need. Networks, files and OpenSHMEM would need a dozen more
# libraries.
mpi_base='^(libmpi|libopen-rte|libopen-pal|libpmix|libevent_.*|libhwloc|libudev|libz)\.so|^libevent_'
# Libraries that every machine with a compiler has.
base='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libresolv)\.so'

unpack() { # PACKAGE..
    (cd "$work" && mkdir -p debs && cd debs && apt-get -q download "$@" >/dev/null)
    for deb in "$work"/debs/*.deb; do
        dpkg-deb -x "$deb" "$work/root"
        rm "$deb"
    done
}

needed_by() { # FOLDER: prints the sonames that its libraries and programs need
    find "$1" -type f \( -name '*.so*' -o -path '*/bin/*' \) -exec sh -c \
        'readelf -d "$1" 2>/dev/null | sed -nE "s/.*\(NEEDED\).*\[(.*)\]/\1/p"' _ {} \; | sort -u
}

# Prints the package of a library that is installed here.
package_of() { # SONAME
    local path
    path=$(ldconfig -p | awk -v name="$1" '$1 == name && /x86-64/ { print $NF; exit }')
    [ -n "$path" ] || { echo "prepare: $1 is wanted and not installed here" >&2; return 1; }
    dpkg -S "*/$(basename "$(realpath "$path")")" | head -1 | cut -d: -f1
}

# Removes the plugins and libraries of Open MPI that need more than mpi_base.
prune_mpi() { # ROOT
    local lib=$1/usr/lib/x86_64-linux-gnu file
    find "$lib/openmpi/lib" "$lib" -maxdepth 1 \( -name 'libmpi_*' -o -name 'liboshmem*' -o -name 'libompitrace*' \
        -o -name 'libmca_common_*' -o -name 'lib*_java*' -o -name 'ompi_monitoring*' \) -exec rm -rf {} +
    rm -rf "$lib"/openmpi/lib/*.mod "$lib"/openmpi/include/openmpi "$lib"/openmpi/lib/openmpi3/mca_{io,fs,osc,op,topo}_*
    for file in "$lib"/openmpi/lib/openmpi3/*.so; do
        ! needed_by "$file" | grep -vE "$base" | grep -qvE "$mpi_base" || rm "$file"
    done
    find "$1/usr/bin" -type f ! -name 'orterun' ! -name 'mpirun*' ! -name pkgconf -delete
}

collect_libraries() {
    local root=$work/root missing
    unpack $packages
    prune_mpi "$root"
    # Removes libraries that nothing here links to, so that what they need is not packed either.
    find "$root" \( -name '*.a' -o -name 'libpcre2-16*' -o -name 'libpcre2-32*' -o -name \
        'libpcre2-posix*' -o -name 'libblas*' -o -name 'liblapack*' \) -delete
    while :; do
        missing=$(needed_by "$root" | grep -vE "$base" | while read -r name; do
            [ -n "$(find "$root" -name "$name" -print -quit)" ] || package_of "$name"
        done | sort -u)
        [ -n "$missing" ] || break
        unpack $missing
        rm -rf "$root"/usr/lib/x86_64-linux-gnu/krb5 # plugins that are never loaded and would need OpenSSL
    done
}

# Plugins keep a folder of their own. A script in the place of mpirun sets where everything is, and makes it start ranks
# on this machine only, because without ssh it would fail otherwise.
lay_out_mpi() { # ROOT PREFIX
    local lib=$1/usr/lib/x86_64-linux-gnu
    mv "$lib/openmpi/lib/openmpi3" "$2/lib"
    rm -rf "$lib/pmix2/lib/pmix"
    cp "$lib"/openmpi/include/mpi*.h "$2/include"
    rm -f "$2"/include/mpif*
    mkdir "$2/include/openmpi" # its .pc file names this folder
    cp -L "$1/usr/bin/orterun" "$2/bin/orterun"
    cat >"$2/bin/mpirun" <<'WRAPPER'
#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
export OPAL_PREFIX="$here" OMPI_MCA_mca_base_component_path="$here/lib/openmpi3"
export OMPI_MCA_plm=isolated PMIX_MCA_pcompress_base_silence_warning=1
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$here/bin/orterun" "$@"
WRAPPER
    chmod +x "$2/bin/mpirun"
}

# Makes one flat prefix of lib, lib/pkgconfig, include and bin.
lay_out() {
    local root=$work/root to=$work/prefix name
    mkdir -p "$to/lib/pkgconfig" "$to/include" "$to/bin"
    cp -a "$root"/usr/include/. "$to/include"
    cp -a "$root"/usr/include/x86_64-linux-gnu/openblas-pthread/. "$to/include" 2>/dev/null || true
    cp "$root"/usr/bin/pkgconf "$to/bin"
    lay_out_mpi "$root" "$to"
    find "$root" -name '*.so*' -type f -exec sh -c \
        'readelf -h "$1" >/dev/null 2>&1 && cp "$1" "$2"' _ {} "$to/lib" \;
    find "$root" \( -name '*.so' -o -name '*.so.*' \) -type l -exec cp -Pn {} "$to/lib" \; 2>/dev/null
    # Links to alternatives and to other folders become links inside lib.
    find "$to/lib" -type l | while read -r name; do
        ln -sf "$(basename "$(readlink "$name")")" "$name"
    done
    for name in "$to"/lib/*.so*; do # linked under the name that programs ask for
        [ -f "$name" ] && [ ! -L "$name" ] || continue
        soname=$(readelf -d "$name" | sed -nE 's/.*\(SONAME\).*\[(.*)\]/\1/p')
        [ -z "$soname" ] || [ -e "$to/lib/$soname" ] || ln -s "$(basename "$name")" "$to/lib/$soname"
    done
    ln -sf libopenblas.so.0 "$to/lib/libopenblas.so"
    find "$root" -name '*.pc' -exec cp {} "$to/lib/pkgconfig" \; # a link is copied as the file that it leads to
    find "$to/lib" -xtype l -delete
    rm -rf "$to"/lib/libblas.so* "$to"/lib/liblapack.so*
    for name in "$to"/lib/pkgconfig/*.pc; do # makes the paths relative to the prefix
        sed -i -E -e 's,/usr/lib/x86_64-linux-gnu(/openblas-pthread)?,${prefix}/lib,g' \
            -e 's,/usr/include(/x86_64-linux-gnu(/openblas-pthread)?)?,${prefix}/include,g' \
            -e '/^(Requires|Libs)\.private/d' "$name"
    done
    tar -C "$to" -cf - . | xz -T0 -6 >.gpu/prefix.tar.xz
}

# Records rows of real photographs. The file holds each picture once.
record() { # NAME SEQ_LEN ROWS STEPS SAMPLES
    build/bin/prepd record -c configs/smoke.yaml --model.path qwen3-vl-30b-a3b \
        --model.tokenizer "$shared/data/tokenizer" --data.path "$shared/data/vqav2" --data.group none \
        --data.limit "$5" --training.seq_len "$2" --training.global_batch_size "$3" \
        --prepd.image_filter plane --prepd.image_codec zstd --prepd.endpoint "ipc://$PWD/$work/d.sock" \
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
        --prepd.image_filter plane --prepd.image_codec zstd --steps 16 --overwrite --out "$work/rows/debug.rec"
    cp -r "$work/synth/model" "$work/rows/debug-model"
}

# Keeps the models, rows and layouts for the tests of several ranks.
keep_ranks() {
    TESSERA_BIN=build/bin TESSERA_TESTS=build/tests python3 -B tests/parallel/layouts.py --keep "$work/rows/ranks"
}

# Packs the files of the first samples and the tokenizer.
keep_photographs() {
    local to=$work/live
    mkdir -p "$to/tokenizer"
    python3 - "$shared/data/vqav2" "$to/vqav2" "$samples" <<'PY'
import json, os, shutil, sys
source, to, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
folder = "images/train2014"
os.makedirs(os.path.join(to, folder))
asked = "v2_OpenEnded_mscoco_train2014_questions.json"
with open(os.path.join(source, asked)) as f:
    questions = json.load(f)
questions["questions"] = questions["questions"][:n]
ids = {q["question_id"] for q in questions["questions"]}
with open(os.path.join(source, "v2_mscoco_train2014_annotations.json")) as f:
    answers = json.load(f)
answers["annotations"] = [a for a in answers["annotations"] if a["question_id"] in ids]
for name, value in ((asked, questions), ("v2_mscoco_train2014_annotations.json", answers)):
    with open(os.path.join(to, name), "w") as f:
        json.dump(value, f)
for image in {q["image_id"] for q in questions["questions"]}:
    name = f"COCO_train2014_{image:012d}.jpg"
    shutil.copyfile(os.path.join(source, folder, name), os.path.join(to, folder, name))
PY
    cp "$shared"/data/tokenizer/{tokenizer.json,*processor_config.json} "$to/tokenizer"
    tar -C "$to" -cf - . | xz -T0 -6 >.gpu/live.tar.xz
}

record_rows() {
    mkdir -p "$work/rows"
    record vqa-8192 8192 4 8 "$samples"
    record vqa-12288 12288 4 6 "$samples"
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
travels=$(( ($( { git ls-files -z 2>/dev/null || find . -path ./.gpu -prune -o -path './build*' -prune -o -type f -print0; } |
    xargs -0 stat -c %s | paste -sd+ ) + $(find .gpu -type f -printf '%s+')0) / 1048576 ))
du -sh .gpu/*
echo "tree and .gpu: $travels MiB of $room_mib"
[ "$travels" -le "$room_mib" ] || { echo "prepare: more than $room_mib MiB would travel" >&2; exit 1; }
