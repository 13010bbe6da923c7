# install.cmake: what `cmake --install build --prefix P` places. The units carry the prefix they were
# installed to, so a moved tree wants another install.
#
#   P/bin                     prepd, prepd-run, trainer
#   P/lib                     the modules of pictures and videos, the trainer's backends (found beside bin)
#   P/lib/systemd/system      prepd.service, prepd-worker@.service, prep.slice, trainer@.service
#   P/share/tessera           configs, client.py (the Python client), dashboard, licence,
#                             train.sbatch
#   P/share/doc/tessera       the pages that these and the programs name
foreach(program prepd trainer)
    if(TARGET ${program})
        install(TARGETS ${program} RUNTIME DESTINATION bin)
    endif()
endforeach()
foreach(backend prepd_image prepd_video tessera_cuda tessera_mpi tessera_loopback tessera_nccl tessera_nccl_double)
    if(TARGET ${backend})
        install(TARGETS ${backend} LIBRARY DESTINATION lib)
    endif()
endforeach()
install(PROGRAMS deploy/prepd-run DESTINATION bin)
install(PROGRAMS deploy/slurm/train.sbatch DESTINATION share/tessera)
install(FILES proto/client.py deploy/grafana-prepd.json LICENSE DESTINATION share/tessera)
install(DIRECTORY configs DESTINATION share/tessera FILES_MATCHING PATTERN "*.yaml" PATTERN "*.md")
set(pages README.md deploy/README.md prepd/README.md prepd/dataset/README.md prepd/plan/README.md proto/README.md)
if(TARGET trainer)
    list(APPEND pages trainer/README.md trainer/ops/README.md trainer/parallel/README.md trainer/plan/README.md)
endif()
foreach(page ${pages})
    get_filename_component(folder ${page} DIRECTORY)
    install(FILES ${page} DESTINATION share/doc/tessera/${folder})
endforeach()
if(TARGET trainer)
    set(trainer_units trainer@.service)
endif()
# systemd takes absolute paths alone; what --prefix says may be a relative one.
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
