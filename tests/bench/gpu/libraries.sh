# libraries.sh: the libraries and headers of Debian's packages that travel to a bare GPU machine, as one prefix. prepare.sh sources
# it, and has made the folder $work.

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

unpack_packages() { # PACKAGE..
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

# Unpacks the packages, and those of the libraries that they need, into $work/root.
collect_libraries() {
    local root=$work/root missing
    unpack_packages $packages
    prune_mpi "$root"
    # Removes libraries that nothing here links to, so that what they need is not packed either.
    find "$root" \( -name '*.a' -o -name 'libpcre2-16*' -o -name 'libpcre2-32*' -o -name \
        'libpcre2-posix*' -o -name 'libblas*' -o -name 'liblapack*' \) -delete
    while :; do
        missing=$(needed_by "$root" | grep -vE "$base" | while read -r name; do
            [ -n "$(find "$root" -name "$name" -print -quit)" ] || package_of "$name"
        done | sort -u)
        [ -n "$missing" ] || break
        unpack_packages $missing
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

# Makes one flat prefix of lib, lib/pkgconfig, include and bin, and packs it into .gpu/prefix.tar.xz.
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
    tar -C "$to" -cf - . | squeeze >.gpu/prefix.tar.xz
}
