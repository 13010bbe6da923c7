# SPDX-License-Identifier: Apache-2.0
"""The environment in which tests call mpirun themselves: as root, more ranks than cores, silent, for Open MPI 4 and 5, whose
mpirun takes other variables and not the same options."""

import os

MPIRUN_ENV = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_mpi_yield_when_idle="1",
                  OMPI_MCA_rmaps_base_oversubscribe="1", PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
                  OMPI_MCA_orte_allowed_exit_without_sync="1", PRTE_MCA_prte_allowed_exit_without_sync="1",
                  OMPI_MCA_orte_execute_quiet="1", PRTE_MCA_prte_execute_quiet="1")
