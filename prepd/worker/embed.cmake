# SPDX-License-Identifier: Apache-2.0
# Usage: cmake -DFOLDER=DIR -DOUT=FILE.c -P embed.cmake
#
# Writes the bytes of the files of a folder as the list of worker/examples.h.
file(GLOB names RELATIVE ${FOLDER} ${FOLDER}/*)
list(SORT names)
set(arrays "")
set(rows "")
foreach(name IN LISTS names)
    file(READ ${FOLDER}/${name} bytes HEX)
    string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
    string(MAKE_C_IDENTIFIER "${name}" word)
    string(APPEND arrays "static const uint8_t ${word}[] = {${bytes}};\n")
    string(APPEND rows "    {\"${name}\", ${word}, sizeof ${word}},\n")
endforeach()
file(WRITE ${OUT} "/* Written by embed.cmake. */\n#include \"prepd/worker/row_prints.h\"\n\n${arrays}\nconst example examples[] = {\n${rows}};\nconst int n_examples = sizeof examples / sizeof *examples;\n")
