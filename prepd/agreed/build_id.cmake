# SPDX-License-Identifier: Apache-2.0
# Usage: cmake -DSOURCE=DIR -DLIST=FILE -DOUT=FILE.c -P build_id.cmake
#
# Writes the build id, a hash of the sources that make rows: of the bytes and names (below DIR) of the files in LIST. Two builds
# of the same tree therefore have the same id, whatever compiler or machine built them, and no repository is needed.
file(STRINGS ${LIST} names)
list(SORT names)
set(all "")
foreach(name IN LISTS names)
    file(SHA256 ${SOURCE}/${name} hash)
    string(APPEND all "${name} ${hash}\n")
endforeach()
string(SHA256 id "${all}")
string(SUBSTRING ${id} 0 32 id)
file(WRITE ${OUT} "/* Written by build_id.cmake. */\n#include \"prepd/agreed/fingerprints.h\"\n\nconst char prepd_build[HASH_TEXT] = \"${id}\";\n")
