#!/usr/bin/env bash
# prepare.sh: fills .gpu/ with what a bare GPU machine lacks: libraries and headers of Debian's
# packages (prefix.tar.gz) and recordings of rows with real photographs (rows/). Needs Debian's
# package mirror, a build of prepd (build/bin) and ../shared (or TESSERA_SHARED).
set -euo pipefail
[ -d common ] && [ -d trainer ] || { echo "prepare: run it as tests/gpu --prepare" >&2; exit 64; }
tree=$PWD
shared=${TESSERA_SHARED:-$(dirname "$tree")/shared}
room_mib=60
mkdir -p .gpu
work=$(mktemp -d .gpu/work-XXXXXX)
trap 'rm -rf "$work"' EXIT

# What the build asks pkg-config for, and the program itself.
packages="libzmq3-dev libzmq5 libzstd-dev libzstd1 libyaml-dev libyaml-0-2 libyajl-dev libyajl2
          libpcre2-dev libpcre2-8-0 libutf8proc-dev libutf8proc2 libxxhash-dev libxxhash0
          libopenblas-pthread-dev libopenblas0-pthread libcmocka-dev libcmocka0
          pkgconf-bin libpkgconf3"
# Of every machine with a compiler.
base='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libresolv)\.so'

unpack() { # PACKAGE..
    (cd "$work" && mkdir -p debs && cd debs && apt-get -q download "$@" >/dev/null)
    for deb in "$work"/debs/*.deb; do
        dpkg-deb -x "$deb" "$work/root"
        rm "$deb"
    done
}

needed_by() { # FOLDER: sonames that its libraries and programs want
    find "$1" -type f \( -name '*.so*' -o -path '*/bin/*' \) -exec sh -c \
        'readelf -d "$1" 2>/dev/null | sed -nE "s/.*\(NEEDED\).*\[(.*)\]/\1/p"' _ {} \; | sort -u
}

# The package that has a library, found where it is installed here.
package_of() { # SONAME
    local path
    path=$(ldconfig -p | awk -v name="$1" '$1 == name && /x86-64/ { print $NF; exit }')
    [ -n "$path" ] || { echo "prepare: $1 is wanted and not installed here" >&2; return 1; }
    dpkg -S "*/$(basename "$(realpath "$path")")" | head -1 | cut -d: -f1
}

collect_libraries() {
    local root=$work/root missing
    unpack $packages
    # Libraries that nobody here links to need nothing more.
    find "$root" \( -name '*.a' -o -name 'libpcre2-16*' -o -name 'libpcre2-32*' -o -name \
        'libpcre2-posix*' -o -name 'libblas*' -o -name 'liblapack*' \) -delete
    while :; do
        missing=$(needed_by "$root" | grep -vE "$base" | while read -r name; do
            [ -n "$(find "$root" -name "$name" -print -quit)" ] || package_of "$name"
        done | sort -u)
        [ -n "$missing" ] || break
        unpack $missing
    done
}

# One flat prefix: lib, lib/pkgconfig, include, bin.
lay_out() {
    local root=$work/root to=$work/prefix name
    mkdir -p "$to/lib/pkgconfig" "$to/include" "$to/bin"
    cp -a "$root"/usr/include/. "$to/include"
    cp -a "$root"/usr/include/x86_64-linux-gnu/openblas-pthread/. "$to/include" 2>/dev/null || true
    cp "$root"/usr/bin/pkgconf "$to/bin"
    find "$root" -name '*.so*' -type f -exec sh -c \
        'readelf -h "$1" >/dev/null 2>&1 && cp "$1" "$2"' _ {} "$to/lib" \;
    find "$root" \( -name '*.so' -o -name '*.so.*' \) -type l -exec cp -P {} "$to/lib" \; 2>/dev/null
    # Links to alternatives and to other folders become links within lib.
    find "$to/lib" -type l | while read -r name; do
        ln -sf "$(basename "$(readlink "$name")")" "$name"
    done
    for name in "$to"/lib/*.so*; do # by the name that programs ask for
        [ -f "$name" ] && [ ! -L "$name" ] || continue
        soname=$(readelf -d "$name" | sed -nE 's/.*\(SONAME\).*\[(.*)\]/\1/p')
        [ -z "$soname" ] || [ -e "$to/lib/$soname" ] || ln -s "$(basename "$name")" "$to/lib/$soname"
    done
    ln -sf libopenblas.so.0 "$to/lib/libopenblas.so"
    find "$root" -name '*.pc' -type f -exec cp {} "$to/lib/pkgconfig" \;
    find "$to/lib" -xtype l -delete
    rm -rf "$to"/lib/libblas.so* "$to"/lib/liblapack.so*
    for name in "$to"/lib/pkgconfig/*.pc; do # paths follow the prefix
        sed -i -E -e 's,/usr/lib/x86_64-linux-gnu(/openblas-pthread)?,${prefix}/lib,g' \
            -e 's,/usr/include(/x86_64-linux-gnu(/openblas-pthread)?)?,${prefix}/include,g' \
            -e '/^(Requires|Libs)\.private/d' "$name"
    done
    tar -czf .gpu/prefix.tar.gz -C "$to" .
    rm -rf .gpu/prefix
}

# Rows of real photographs, each image once in the file.
record() { # NAME SEQ_LEN ROWS STEPS SAMPLES
    build/bin/prepd record -c configs/smoke.yaml --model.path qwen3-vl-30b-a3b \
        --model.tokenizer "$shared/data/tokenizer" --data.path "$shared/data/vqav2" \
        --data.limit "$5" --training.seq_len "$2" --training.global_batch_size "$3" \
        --prepd.image_filter plane --prepd.image_codec zstd --prepd.endpoint "ipc://$PWD/$work/d.sock" \
        --prepd.cache_dir "$PWD/$work/cache" --steps "$4" --out ".gpu/rows/$1.rec"
}

# Generated pictures for a small model, and that model's folder: what a CPU can train on too.
record_debug() {
    build/bin/prepd synth --out "$work/synth" --images 400 --seed 1 --sizes small
    build/bin/prepd record -c configs/smoke.yaml --model.path "$work/synth/model" \
        --data.path "$work/synth" --training.seq_len 256 --training.global_batch_size 2 \
        --prepd.endpoint "ipc://$PWD/$work/d.sock" --prepd.cache_dir "$PWD/$work/cache" \
        --prepd.image_filter plane --prepd.image_codec zstd --steps 16 --out .gpu/rows/debug.rec
    cp -r "$work/synth/model" .gpu/rows/debug-model
}

record_rows() {
    [ -x build/bin/prepd ] || { echo "prepare: no build/bin/prepd; build the tree first" >&2; exit 69; }
    [ -d "$shared/data/vqav2" ] || { echo "prepare: no $shared/data/vqav2; set TESSERA_SHARED" >&2; exit 66; }
    rm -rf .gpu/rows && mkdir -p .gpu/rows
    record vqa-8192 8192 4 8 55
    record vqa-12288 12288 4 6 55
    record_debug
}

collect_libraries
lay_out
record_rows
git rev-parse HEAD >.gpu/commit 2>/dev/null || true
rm -rf "$work"
travels=$(( ($( { git ls-files -z 2>/dev/null || find . -path ./.gpu -prune -o -path './build*' -prune -o -type f -print0; } |
    xargs -0 stat -c %s | paste -sd+ ) + $(find .gpu -type f -printf '%s+')0) / 1048576 ))
du -sh .gpu/* .gpu/rows/*
echo "tree and .gpu: $travels MiB of $room_mib"
[ "$travels" -le "$room_mib" ] || { echo "prepare: more than $room_mib MiB would travel" >&2; exit 1; }
