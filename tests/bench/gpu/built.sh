# built.sh: the programs that a GPU machine needs: compiled where they are packed, or there. tests/gpu's stages and --prepare
# source it.

# A hash of everything that the programs are made of.
sources_hash() {
    (cd "$source_dir" && find CMakeLists.txt common proto prepd trainer tests -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \
        -o -name '*.cc' -o -name '*.def' -o -name CMakeLists.txt \) -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16)
}

# Prints those of the targets that this build has; Open MPI or NCCL's header may be missing.
targets_there() { # TARGET..
    local list name
    list=$(cmake --build "$build" --target help)
    for name; do
        grep -qE "(^|\.\.\. )$name(:|\$| )" <<<"$list" && echo "$name"
    done
    return 0
}

# Compiles into `build` with the libraries of `prefix`. Programs look for them beside themselves, wherever they are taken.
compile() {
    local generator="Unix Makefiles" name
    command -v nvcc >/dev/null || { echo "failed: no nvcc in PATH, /usr/local/cuda or Python's wheels"; return 1; }
    command -v cmake >/dev/null || { echo "failed: no cmake"; return 1; }
    command -v ninja >/dev/null && generator=Ninja
    cmake -S "$source_dir" -B "$build" -G "$generator" -DPREPD=OFF -DHTTP=OFF -DCUDA=ON -DCUDA_LINES=ON \
        -DCMAKE_BUILD_RPATH="\$ORIGIN/../prefix/lib;\$ORIGIN/../../prefix/lib" \
        -DCMAKE_EXE_LINKER_FLAGS="$link_flags" -DCMAKE_SHARED_LINKER_FLAGS="$link_flags" \
        -DCMAKE_MODULE_LINKER_FLAGS="$link_flags" || return
    cmake --build "$build" -j "$(nproc)" --target trainer tessera_cuda test_parity_cuda \
        test_model_cuda bench_feed bench_device probe $(targets_there tessera_mpi ranks_parity tessera_nccl nccl_alone)
}

# Packs what compile has made, without what a debugger needs.
pack_built() { # ARCHIVE
    local folder=$build/packed file
    rm -rf "$folder" && mkdir -p "$folder"
    (cd "$build" && find bin lib/tessera tests -maxdepth 1 -type f \( -perm -u+x -o -name '*.so' \)) | while read -r file; do
        mkdir -p "$folder/$(dirname "$file")"
        strip -g -o "$folder/$file" "$build/$file" || cp "$build/$file" "$folder/$file"
    done
    sources_hash >"$folder/sources"
    tar -C "$folder" -cf - . | squeeze >"$1"
}

unpack() { # ARCHIVE FOLDER
    mkdir -p "$2" && { tar -xf "$1" -C "$2" 2>/dev/null || python3 -W ignore -m tarfile -e "$1" "$2"; } # tar needs xz's program
}

# Unpacks the programs that were packed, if they are those of this tree and run here.
unpack_built() { # ARCHIVE
    [ -f "$1" ] || { echo "there are no packed programs"; return 1; }
    unpack "$1" "$build" || { echo "the packed programs cannot be unpacked"; return 1; }
    [ "$(cat "$build/sources")" = "$(sources_hash)" ] || { echo "the packed programs are those of other sources"; return 1; }
    "$build/bin/trainer" --version >/dev/null || { echo "the packed programs do not run here"; return 1; }
}

stage_build() {
    local file
    if unpack_built "$source_dir/.gpu/built.tar.xz"; then
        echo "programs: packed ones, of these sources"
    else
        echo "programs: compiled here"
        rm -rf "$build/bin" "$build/lib" "$build/tests"
        compile || return
    fi
    for file in "$build"/bin/* "$build"/lib/tessera/*.so "$build"/tests/*; do
        [ -f "$file" ] && [ -x "$file" ] || continue
        # Open MPI's own libraries find each other by the path that its mpirun sets (libraries.sh).
        ! LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$prefix/lib ldd "$file" | grep 'not found' || { echo "failed: $file lacks a library"; return 1; }
    done
    "$build/bin/trainer" --version || return
    # The CPU backend must work with the packed libraries.
    "$build/bin/trainer" bench ops gemm --model.path debug --training.backend cpu --training.seq_len 64 || return
    ls -l "$build/bin" "$build/lib/tessera"
}

# The version that a header states in three macros, and the library that programs would load.
version_of() { # NAME HEADER PREFIX LIBRARY FOLDER..
    local name=$1 header=$2 prefix=$3 library=$4 folder part version= at
    shift 4
    for folder in "$@"; do
        [ -f "$folder/$header" ] || continue
        for part in MAJOR MINOR PATCH PATCHLEVEL; do
            at=$(sed -nE "s/^#define ${prefix}_$part +([0-9]+).*/\1/p" "$folder/$header" | head -1)
            version+=${at:+.$at}
        done
        break
    done
    at=$(IFS=:; for folder in ${LD_LIBRARY_PATH-} $toolkit/lib64 $toolkit/lib; do [ ! -e "$folder/$library" ] || { echo "$folder"; break; }; done)
    echo "versions: $name: header ${version#.}${version:- not found}${version:+ in $folder}, library ${at:-not found beside the toolkit or in the wheels}" |
        sed -E 's/header ([0-9.]+)\.\1/header \1/'
}

# What is installed, before anything is run.
stage_versions() {
    local toolkit tool
    echo "versions: GPU and driver: $(ask_card name,driver_version,memory.total,compute_cap | head -1) (MiB, compute capability)"
    echo "versions: the driver's CUDA: $(timeout 20 nvidia-smi 2>/dev/null | sed -nE 's/.*CUDA Version: ([0-9.]+).*/\1/p' | head -1)"
    toolkit=$(command -v nvcc) && toolkit=$(dirname "$(dirname "$(realpath "$toolkit")")")
    echo "versions: nvcc: $(nvcc --version 2>/dev/null | sed -nE 's/.*release .*, (V.*)/\1/p') in ${toolkit:-no toolkit}"
    version_of cuDNN cudnn_version.h CUDNN libcudnn.so.9 "$toolkit/include" "${CUDNN_HOME:-/nowhere}/include"
    version_of NCCL nccl.h NCCL libnccl.so.2 "${NCCL_HOME:-/nowhere}/include" "$toolkit/include"
    version_of cuBLAS cublas_api.h CUBLAS_VER libcublasLt.so.13 "$toolkit/include"
    echo "versions: Python: $(python3 - 2>&1 <<'PY'
import platform
from importlib import metadata
found = [f"{platform.python_version()}"]
for name in ("torch", "transformers", "triton", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "nvidia-cublas"):
    try:
        found.append(f"{name} {metadata.version(name)}")
    except metadata.PackageNotFoundError:
        found.append(f"no {name}")
print(", ".join(found))
PY
)"
    for tool in compute-sanitizer cuobjdump cmake ninja cc git make xz mpirun; do
        echo "tool: $tool: $(command -v $tool || echo none)"
    done
    echo "machine: $(ldd --version 2>&1 | head -1), $(free -m 2>/dev/null | awk '/^Mem/ { print $2 " MiB" }')"
    nvidia-smi -q -d CLOCK,POWER 2>/dev/null | grep -E 'Graphics|SM  |Memory  |Power Limit|Slowdown' | head -30
    command -v nvidia-smi >/dev/null || return 69
}
