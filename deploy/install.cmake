# SPDX-License-Identifier: Apache-2.0
# install.cmake: what `cmake --install build --prefix P` installs. The prefix is written into the
# systemd units, so a tree that is moved has to be installed again.
#
#   P/bin                     prepd, prepd-run, trainer
#   P/lib/tessera             prepd's image and video modules and the trainer's backends; the programs
#                             look for them in ../lib/tessera from their own folder
#   P/lib/systemd/system      prepd.service, prepd-worker@.service, prep.slice, trainer@.service
#   P/share/tessera           configs, dashboards, alert rules, licence, train.sbatch, from-parquet,
#                             from-torchtitan, log-to-wandb, what-fits; in python the package tessera, the Python client
#   P/share/doc/tessera       the pages, in the folders of the source tree (pages.cmake)
#   P/share/man/man1          a manual page of each program
foreach(program IN LISTS tessera_programs)
    if(TARGET ${program})
        install(TARGETS ${program} RUNTIME DESTINATION bin)
        set(manual ${CMAKE_BINARY_DIR}/man/${program}.1)
        add_custom_command(OUTPUT ${manual}
            COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/man
            COMMAND ${program} --man > ${manual}
            DEPENDS ${program} VERBATIM)
        list(APPEND manuals ${manual})
        install(FILES ${manual} DESTINATION share/man/man1)
    endif()
endforeach()
foreach(module IN LISTS tessera_modules)
    if(TARGET ${module})
        install(TARGETS ${module} LIBRARY DESTINATION lib/tessera)
    endif()
endforeach()
install(PROGRAMS deploy/prepd-run DESTINATION bin)
set(tessera_scripts deploy/slurm/train.sbatch deploy/from-parquet deploy/from-torchtitan deploy/log-to-wandb deploy/what-fits)
install(PROGRAMS ${tessera_scripts} DESTINATION share/tessera)
install(DIRECTORY proto/python/tessera DESTINATION share/tessera/python FILES_MATCHING PATTERN "*.py" PATTERN "*.pyi" PATTERN "py.typed")
if(TARGET tessera_reader)
    install(TARGETS tessera_reader LIBRARY DESTINATION share/tessera/python/tessera)
endif()
set(tessera_share deploy/parquet_columns.py deploy/parquet_forms.py deploy/grafana-prepd.json deploy/grafana-trainer.json
    deploy/prometheus-alerts.yaml configs/other-trainers.md LICENSE)
install(FILES ${tessera_share} DESTINATION share/tessera)
install(DIRECTORY configs DESTINATION share/tessera FILES_MATCHING PATTERN "*.yaml")

# Pages and the pictures in them.
if(TARGET trainer)
    set(trainer_pages trainer)
endif()
file(GLOB pages CONFIGURE_DEPENDS *.md)
foreach(folder common configs deploy prepd proto tests/bench/results ${trainer_pages})
    file(GLOB_RECURSE found CONFIGURE_DEPENDS ${folder}/*.md ${folder}/*.png ${folder}/*.svg)
    list(FILTER found EXCLUDE REGEX "/worker/examples/") # parts of a program
    list(APPEND pages ${found})
endforeach()
set(page_stamp ${CMAKE_BINARY_DIR}/pages.stamp)
add_custom_command(OUTPUT ${page_stamp}
    COMMAND ${CMAKE_COMMAND} "-DPAGES=${pages}" -DSOURCE=${CMAKE_SOURCE_DIR} -DOUT=${CMAKE_BINARY_DIR}/pages
        -P ${CMAKE_SOURCE_DIR}/deploy/pages.cmake
    COMMAND ${CMAKE_COMMAND} -E touch ${page_stamp}
    DEPENDS ${pages} deploy/pages.cmake VERBATIM)
add_custom_target(pages ALL DEPENDS ${page_stamp} ${manuals})
add_dependencies(programs pages)
install(DIRECTORY ${CMAKE_BINARY_DIR}/pages/ DESTINATION share/doc/tessera)
if(TARGET trainer)
    set(trainer_units trainer@.service)
endif()
# systemd accepts only absolute paths, and --prefix may be relative.
install(CODE "
    get_filename_component(root \"\${CMAKE_INSTALL_PREFIX}\" ABSOLUTE)
    foreach(unit prepd.service prepd-worker@.service prep.slice ${trainer_units})
        file(READ \"${CMAKE_SOURCE_DIR}/deploy/systemd/\${unit}\" text)
        string(REPLACE \"@prefix@\" \"\${root}\" text \"\${text}\")
        set(to \"\$ENV{DESTDIR}\${root}/lib/systemd/system/\${unit}\")
        file(WRITE \"\${to}\" \"\${text}\")
        message(STATUS \"Installing: \${to}\")
    endforeach()
")
