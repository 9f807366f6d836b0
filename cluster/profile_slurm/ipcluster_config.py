"""ipyparallel's settings for ranks in a Slurm job; the batch text is in engines.sbatch beside this file."""

c = get_config()  # noqa: F821  (given by ipyparallel's loader)

c.Cluster.engine_launcher_class = "slurm"
# The controller runs where the notebook runs, and the compute nodes must reach it.
c.Cluster.controller_ip = "*"
