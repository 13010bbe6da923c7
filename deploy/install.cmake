# install.cmake: what `cmake --install build --prefix P` installs. The prefix is written into the
# systemd units, so a tree that is moved has to be installed again.
#
#   P/bin                     prepd, prepd-run, trainer
#   P/lib                     prepd's image and video modules and the trainer's backends; the programs
#                             look for them in ../lib from their own folder
#   P/lib/systemd/system      prepd.service, prepd-worker@.service, prep.slice, trainer@.service
#   P/share/tessera           configs, dashboards, alert rules, licence, train.sbatch, from-parquet,
#                             log-to-wandb; in python the package tessera, the Python client
#   P/share/doc/tessera       the pages that the units, the scripts and the programs refer to
foreach(program IN LISTS tessera_programs)
    if(TARGET ${program})
        install(TARGETS ${program} RUNTIME DESTINATION bin)
    endif()
endforeach()
foreach(backend IN LISTS tessera_modules)
    if(TARGET ${backend})
        install(TARGETS ${backend} LIBRARY DESTINATION lib)
    endif()
endforeach()
install(PROGRAMS deploy/prepd-run DESTINATION bin)
set(tessera_scripts deploy/slurm/train.sbatch deploy/from-parquet deploy/log-to-wandb)
install(PROGRAMS ${tessera_scripts} DESTINATION share/tessera)
install(DIRECTORY proto/python/tessera DESTINATION share/tessera/python FILES_MATCHING PATTERN "*.py" PATTERN "*.pyi" PATTERN "py.typed")
if(TARGET tessera_reader)
    install(TARGETS tessera_reader LIBRARY DESTINATION share/tessera/python/tessera)
endif()
set(tessera_share deploy/parquet_columns.py deploy/parquet_forms.py deploy/grafana-prepd.json deploy/grafana-trainer.json
    deploy/prometheus-alerts.yaml LICENSE)
install(FILES ${tessera_share} DESTINATION share/tessera)
install(DIRECTORY configs DESTINATION share/tessera FILES_MATCHING PATTERN "*.yaml" PATTERN "*.md")
set(folders . configs deploy prepd prepd/dataset prepd/plan proto)
if(TARGET trainer)
    list(APPEND folders trainer trainer/device trainer/ops trainer/parallel trainer/plan)
endif()
list(TRANSFORM folders PREPEND ${CMAKE_SOURCE_DIR}/)
list(TRANSFORM folders APPEND /*.md)
file(GLOB pages RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS ${folders})
foreach(page ${pages})
    get_filename_component(folder ${page} DIRECTORY)
    install(FILES ${page} DESTINATION share/doc/tessera/${folder})
endforeach()
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
