"""ipyparallel's settings for ranks on several hosts over SSH; the hosts are in hostfile beside this file."""

import os
import sysconfig

c = get_config()  # noqa: F821  (given by ipyparallel's loader)

folder = os.path.dirname(os.path.abspath(__file__)) if "__file__" in globals() else os.getcwd()
c.Cluster.engine_launcher_class = "mpi"
# The controller runs where the notebook runs, and the other hosts must reach it.
c.Cluster.controller_ip = "*"
c.MPILauncher.mpi_cmd = [os.path.join(sysconfig.get_path("scripts"), "mpiexec")]
c.MPILauncher.mpi_args = ["-launcher", "ssh", "-f", os.path.join(folder, "hostfile"), "-bind-to", "core"]
