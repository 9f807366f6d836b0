#!/bin/sh
# Everything the GPUs of one machine are asked, in one call: checks against the oracle, then the tables.
#   OUT=results BUDGET_S=420 sh benchmarks/on_gpus.sh [check|bench|all]
set -u
what=${1:-all}
out=${OUT:-out}/gpu
budget=${BUDGET_S:-420}
python=${PYTHON:-python3}
gpus=$(nvidia-smi --list-gpus | wc -l)
ranks=${RANKS:-$gpus}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# NVLink multicast stays off.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
mkdir -p "$out"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c

launch() { # ranks, seconds, command
  n=$1; seconds=$2; shift 2
  case "$(mpiexec --version 2>&1)" in
    *"Open MPI"*) timeout -k 10 "$seconds" mpiexec --oversubscribe --bind-to none -n "$n" "$python" "$@" ;;
    *) timeout -k 10 "$seconds" mpiexec -n "$n" "$python" "$@" ;;
  esac
}

status=0
if [ "$what" != bench ]; then
  launch "$ranks" 150 benchmarks/gpu_check.py --out "$out" --budget-s 120 || status=1
  launch "$ranks" 60 benchmarks/gpu_check.py --quick --only adam --symmetric nccl --out "$out/nccl" --budget-s 45 || status=1
  launch "$ranks" 90 benchmarks/gpu_check.py --only fp16 --form push --ctas 3 --out "$out/push" --budget-s 75 || status=1
  launch 1 60 benchmarks/gpu_check.py --quick --out "$out/one" --budget-s 45 || status=1
  timeout -k 10 240 "$python" -m pytest tests/gpu -q -k "not every_workload and not any_form" || status=1
fi
if [ "$what" != check ]; then
  launch "$ranks" $((budget + 60)) benchmarks/gpu_data_parallel.py --out "$out" --budget-s "$budget" || status=1
fi
exit $status
