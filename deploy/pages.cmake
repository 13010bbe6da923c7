# SPDX-License-Identifier: Apache-2.0
# pages.cmake: copies the PAGES (and pictures) below SOURCE to the folder OUT, for `cmake --install` and cpack:
#
#   cmake -DPAGES="A.md;B.png" -DSOURCE=DIR -DOUT=DIR -P deploy/pages.cmake
#
# A link to a file that is not among them becomes its text and the file's name, except that one to a configuration leads
# to where configurations are installed, from share/doc/tessera to share/tessera.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${OUT})
foreach(page IN LISTS PAGES)
    cmake_path(RELATIVE_PATH page BASE_DIRECTORY ${SOURCE} OUTPUT_VARIABLE to)
    cmake_path(GET page PARENT_PATH folder)
    if(NOT page MATCHES "[.]md$")
        file(COPY_FILE ${page} ${OUT}/${to})
        continue()
    endif()
    file(READ ${page} text)
    string(REGEX MATCHALL "[(][^ ()]+[)]" links "${text}")
    list(REMOVE_DUPLICATES links)
    foreach(link IN LISTS links)
        string(REGEX REPLACE "^[(]([^#]*).*[)]$" "\\1" target "${link}")
        cmake_path(ABSOLUTE_PATH target BASE_DIRECTORY ${folder} NORMALIZE OUTPUT_VARIABLE file)
        string(FIND "${text}" "]${link}" found)
        if(found EQUAL -1 OR target STREQUAL "" OR target MATCHES "^[a-z]+:" OR file IN_LIST PAGES)
            continue()
        endif()
        string(REGEX REPLACE "([][+.*?^$()|\\])" "\\\\\\1" pattern "${link}")
        cmake_path(RELATIVE_PATH file BASE_DIRECTORY ${SOURCE})
        if(file MATCHES "^configs/[^/]+[.]yaml$")
            string(REGEX REPLACE "[^/]+" ".." up "${to}") # from the page to share/doc
            set(with "[\\1](${up}/../tessera/${file})")
        else()
            string(REGEX REPLACE "\\[([^][]*/[^][]*)\\]${pattern}" "\\1" text "${text}") # it names the file itself
            set(with "\\1 (`${file}` of the source)")
        endif()
        string(REGEX REPLACE "!?\\[([^][]*)\\]${pattern}" "${with}" text "${text}")
    endforeach()
    file(WRITE ${OUT}/${to} "${text}")
endforeach()
