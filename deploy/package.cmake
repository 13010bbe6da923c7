# SPDX-License-Identifier: Apache-2.0
# package.cmake: Debian packages of what was built: cd build && cpack
#
#   tessera-common   configurations, the dashboards and the pages, for prepd and the trainer
#   tessera-prepd    the daemon, its modules, its units, /etc/tessera/prepd.yaml and worker.env, the user prepd
#   tessera-trainer  the trainer, the backends that were built, its unit
#   python3-tessera  the Python client for Debian's own Python, with its C extension where that was built
#
#   /usr/lib/python3/dist-packages/tessera   the Python client
#   /usr/bin, /usr/lib, /usr/share           as `cmake --install` has them
#
# None of these rules is part of `cmake --install`, which installs by those of install.cmake.
set(package_doc "usr/share/doc")
set(package_made ${CMAKE_CURRENT_BINARY_DIR}/package) # files that are made for the packages
set(package_parts common python)

function(package_file to part)
    install(FILES ${ARGN} DESTINATION ${to} COMPONENT ${part} EXCLUDE_FROM_ALL)
endfunction()

# A program with its modules and its manual page.
function(package_program program)
    install(TARGETS ${program} RUNTIME DESTINATION usr/bin COMPONENT ${program} EXCLUDE_FROM_ALL)
    package_file(usr/share/man/man1 ${program} ${CMAKE_BINARY_DIR}/man/${program}.1)
    foreach(module IN LISTS ARGN)
        if(TARGET ${module})
            install(TARGETS ${module} LIBRARY DESTINATION usr/lib/tessera COMPONENT ${program} EXCLUDE_FROM_ALL)
        endif()
    endforeach()
endfunction()

function(package_units part)
    foreach(unit IN LISTS ARGN)
        file(READ ${CMAKE_SOURCE_DIR}/deploy/systemd/${unit} text)
        string(REPLACE "@prefix@" "/usr" text "${text}")
        file(CONFIGURE OUTPUT ${package_made}/${unit} CONTENT "${text}" @ONLY)
        package_file(usr/lib/systemd/system ${part} ${package_made}/${unit})
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/deploy/systemd/${unit})
    endforeach()
endfunction()

if(TARGET prepd)
    list(APPEND package_parts prepd)
    set(modules ${tessera_modules})
    list(FILTER modules INCLUDE REGEX "^prepd_")
    package_program(prepd ${modules})
    package_units(prepd prepd.service prepd-worker@.service prep.slice)
    install(PROGRAMS deploy/prepd-run DESTINATION usr/bin COMPONENT prepd EXCLUDE_FROM_ALL)
    package_file(etc/tessera prepd deploy/debian/prepd/prepd.yaml deploy/debian/prepd/worker.env)
endif()
if(TARGET trainer)
    list(APPEND package_parts trainer)
    set(modules ${tessera_modules})
    list(FILTER modules INCLUDE REGEX "^tessera_")
    package_program(trainer ${modules})
    package_units(trainer trainer@.service)
endif()
package_file(usr/share/tessera common ${tessera_share})
install(DIRECTORY proto/python/tessera DESTINATION usr/lib/python3/dist-packages COMPONENT python EXCLUDE_FROM_ALL
    FILES_MATCHING PATTERN "*.py" PATTERN "*.pyi" PATTERN "py.typed")
if(TARGET tessera_reader)
    install(TARGETS tessera_reader LIBRARY DESTINATION usr/lib/python3/dist-packages/tessera COMPONENT python EXCLUDE_FROM_ALL)
endif()
install(PROGRAMS ${tessera_scripts} DESTINATION usr/share/tessera COMPONENT common EXCLUDE_FROM_ALL)
install(DIRECTORY configs DESTINATION usr/share/tessera COMPONENT common EXCLUDE_FROM_ALL
    FILES_MATCHING PATTERN "*.yaml")
install(DIRECTORY ${CMAKE_BINARY_DIR}/pages/ DESTINATION ${package_doc}/tessera COMPONENT common EXCLUDE_FROM_ALL)
foreach(part IN LISTS package_parts)
    set(name tessera-${part})
    string(REPLACE tessera-python python3-tessera name ${name})
    package_file(${package_doc}/${name} ${part} deploy/debian/copyright)
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tessera)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL ${package_parts})
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "Tessera <tessera@localhost>")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(same_version "tessera-common (= ${PROJECT_VERSION})")

set(CPACK_DEBIAN_COMMON_PACKAGE_NAME tessera-common)
set(CPACK_DEBIAN_COMMON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_COMMON_PACKAGE_SHLIBDEPS OFF)
set(CPACK_COMPONENT_COMMON_DESCRIPTION "configurations and pages of Tessera
What the data daemon prepd and the trainer share: configurations to start from,
the pages of both, dashboards.")

# The extension serves every Python from 3.11 on. tessera.client, which is numpy alone, needs the other packages with it too.
set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-tessera)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3 (>= 3.11), python3-numpy, python3-zmq, python3-zstandard, python3-xxhash")
if(NOT TARGET tessera_reader)
    set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
    set(CPACK_DEBIAN_PYTHON_PACKAGE_SHLIBDEPS OFF)
endif()
set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA "${CMAKE_SOURCE_DIR}/deploy/debian/python/prerm")
set(CPACK_COMPONENT_PYTHON_DESCRIPTION "rows of the data daemon prepd, for PyTorch and numpy
The client of a running prepd, and the reader of its recordings, for Python:
packed rows as arrays, exact resume, masks, collators for transformers.")

set(CPACK_DEBIAN_PREPD_PACKAGE_NAME tessera-prepd)
set(CPACK_DEBIAN_PREPD_PACKAGE_DEPENDS "${same_version}, passwd")
set(CPACK_DEBIAN_PREPD_PACKAGE_CONTROL_EXTRA
    "${CMAKE_SOURCE_DIR}/deploy/debian/prepd/postinst;${CMAKE_SOURCE_DIR}/deploy/debian/prepd/prerm;${CMAKE_SOURCE_DIR}/deploy/debian/prepd/postrm;${CMAKE_SOURCE_DIR}/deploy/debian/prepd/conffiles")
set(CPACK_DEBIAN_PREPD_PACKAGE_SUGGESTS python3-tessera)
set(CPACK_COMPONENT_PREPD_DESCRIPTION "data daemon that streams packed rows of pictures and text
Turns pictures, videos and texts into packed rows for the training of
vision-language models and streams them to trainers, exactly once an epoch.")

# OpenBLAS is loaded when the trainer runs, so dpkg-shlibdeps does not see it. mpirun is needed for several ranks.
set(CPACK_DEBIAN_TRAINER_PACKAGE_NAME tessera-trainer)
set(CPACK_DEBIAN_TRAINER_PACKAGE_DEPENDS "${same_version}, libopenblas0")
set(CPACK_DEBIAN_TRAINER_PACKAGE_RECOMMENDS openmpi-bin)
set(CPACK_DEBIAN_TRAINER_PACKAGE_SUGGESTS tessera-prepd)
set(CPACK_DEBIAN_TRAINER_PACKAGE_CONTROL_EXTRA
    "${CMAKE_SOURCE_DIR}/deploy/debian/trainer/postinst;${CMAKE_SOURCE_DIR}/deploy/debian/trainer/prerm;${CMAKE_SOURCE_DIR}/deploy/debian/trainer/postrm")
set(CPACK_COMPONENT_TRAINER_DESCRIPTION "trainer of vision-language mixture-of-experts models
Trains, evaluates and exports Qwen3-VL models on rows from prepd. Runs on CPUs
as it is; on GPUs if it was built with CUDA and NVIDIA's libraries are there.")
include(CPack)
