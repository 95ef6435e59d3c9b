"""All operations that trials of faults know, by name."""

from faultsteps import Casts, Collective, Compute, Exchange, Leave, Shrink, Split, Subgroup
from faultsteps_elastic import OPERATIONS as ELASTIC
from faultsteps_more import Boards, Exports, Foreign, Memory, Moe, Refused, Replays, Streams, Submit, Vmm

OTHERS = {
    "exchange": Exchange, "split": Split, "subgroup": Subgroup, "shrink": Shrink, "memory": Memory, "foreign": Foreign,
    "vmm": Vmm, "exports": Exports, "stream": Streams, "replay": Replays, "submit": Submit, "board": Boards,
    "moe": Moe, "refused": Refused, "leave": Leave, "clock": Collective, "init": Collective, "compute": Compute,
    "casts": Casts,
}  # fmt: skip
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter",
               "all_to_all_v", "barrier", "ring", "in_place", "plain_arrays", "background")  # fmt: skip
OPERATIONS = COLLECTIVES + tuple(OTHERS) + ELASTIC


def make(trial):
    return OTHERS.get(trial.operation, Collective)(trial)
