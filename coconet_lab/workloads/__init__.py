"""The paper's programs, each written once, with its schedules by the paper's names (paper §4, §6)."""

from coconet_lab.workloads.bert import BERT_SHAPES
from coconet_lab.workloads.epilogues import mlp, self_attention
from coconet_lab.workloads.optimizers import adam, lamb, sgd
from coconet_lab.workloads.pipeline import pipeline
from coconet_lab.workloads.workload import Workload

__all__ = ["BERT_SHAPES", "Workload", "adam", "lamb", "mlp", "pipeline", "self_attention", "sgd"]
