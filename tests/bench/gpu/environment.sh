# environment.sh: finds the tools and libraries of the machine that builds and runs. tests/gpu sources it for a stage
# and sets source_dir, prefix and build before.

# Debian's libraries are those that --prepare packed, or without the archive the system's own. The rows are recordings.
for folder in "$prefix" "$rows"; do
    archive=$source_dir/.gpu/${folder##*/}.tar.xz
    [ -f "$archive" ] && [ "$(cksum <"$archive")" != "$(cat "$folder/unpacked" 2>/dev/null)" ] || continue
    rm -rf "$folder" && unpack "$archive" "$folder" && cksum <"$archive" >"$folder/unpacked" ||
        { echo "failed: $archive cannot be unpacked"; return 74; }
done
link_flags=
if [ -d "$prefix/lib" ]; then
    export PKG_CONFIG=$source_dir/tests/bench/gpu/pkg-config GPU_PREFIX=$prefix
    [ ! -x "$prefix/bin/mpirun" ] || PATH=$prefix/bin:$PATH
    # A run path of the old kind (RPATH) is also searched for the libraries that libraries need.
    link_flags="-Wl,--disable-new-dtags -Wl,-rpath-link,$prefix/lib" # built.sh has the run path
fi

# CUDA is in PATH, in the usual folder, or inside Python's wheels.
python=$(command -v python3 || true)
wheels=
if [ -n "$python" ]; then
    wheels=$("$python" - 2>/dev/null <<'PY'
import sysconfig, os
for name in ("purelib", "platlib"):
    path = os.path.join(sysconfig.get_paths()[name], "nvidia")
    if os.path.isdir(path):
        print(path)
        break
PY
)
fi
if ! command -v nvcc >/dev/null; then
    for nvcc in /usr/local/cuda*/bin/nvcc ${wheels:+"$wheels"/*/bin/nvcc}; do
        [ -x "$nvcc" ] && PATH=$(dirname "$nvcc"):$PATH && break
    done
fi
export PATH
# cuBLAS, cuDNN and NCCL are those of the toolkit if it has them, and otherwise those of the wheels. Programs that were packed
# elsewhere do not know where the toolkit is.
if command -v nvcc >/dev/null; then
    for folder in "$(dirname "$(realpath "$(command -v nvcc)")")"/../lib64 "$(dirname "$(realpath "$(command -v nvcc)")")"/../lib; do
        [ -e "$folder/libcublasLt.so" ] || [ -n "$(compgen -G "$folder/libcublasLt.so.*")" ] || continue
        LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$(realpath "$folder")
    done
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH-}
fi
if [ -n "$wheels" ]; then
    for folder in "$wheels"/*/lib; do
        [ -d "$folder" ] && LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    done
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH-}
    for folder in "$wheels"/cu*/include "$wheels"/cublas/include; do # searched after the toolkit's own
        [ -d "$folder" ] && export C_INCLUDE_PATH=${C_INCLUDE_PATH:+$C_INCLUDE_PATH:}$folder
    done
    [ ! -f "$wheels/cudnn/include/cudnn.h" ] || export CUDNN_HOME=${CUDNN_HOME:-$wheels/cudnn}
    [ ! -f "$wheels/nccl/include/nccl.h" ] || export NCCL_HOME=${NCCL_HOME:-$wheels/nccl}
fi
