"""The orders in which PyTorch's pipeline schedules compute, for sizes of a pipeline.

Writes data/pipeline_schedules.json: by kind, ranks, stages of a rank and micro-batches, the actions of each rank as
Tessera's texts have them (F1.0: forward of stage 1 for micro-batch 0; B: its backward; I and W: its two halves).
"""

import json
import pathlib

from torch.distributed.pipelining import schedules

OUT = pathlib.Path(__file__).resolve().parent / "data" / "pipeline_schedules.json"


def bare(kind, **fields):
    """A schedule without stages: only what its order is computed from."""
    schedule = object.__new__(kind)
    for name, value in fields.items():
        setattr(schedule, name, value)
    return schedule


def order(kind, ranks, stages_of_rank, micro_batches):
    if kind in (schedules.ScheduleGPipe, schedules.Schedule1F1B):
        return bare(kind, _num_stages=ranks, _n_microbatches=micro_batches)._get_pipeline_order()
    rounds = max(1, micro_batches // ranks)
    schedule = bare(kind, pp_group_size=ranks, n_local_stages=stages_of_rank, _n_microbatches=micro_batches,
                    _num_stages=ranks * stages_of_rank, num_stages=ranks * stages_of_rank,
                    microbatches_per_round=micro_batches // rounds)
    return {rank: schedule._calculate_single_rank_operations(rank) for rank in range(ranks)}


KINDS = {"gpipe": schedules.ScheduleGPipe, "1f1b": schedules.Schedule1F1B,
         "interleaved": schedules.ScheduleInterleaved1F1B, "zero_bubble_v": schedules.ScheduleZBVZeroBubble}
SIZES = [("gpipe", 2, 1, 3), ("gpipe", 4, 1, 8), ("1f1b", 2, 1, 4), ("1f1b", 3, 1, 5), ("1f1b", 4, 1, 8),
         ("1f1b", 4, 1, 4), ("interleaved", 2, 2, 4), ("interleaved", 4, 2, 8), ("interleaved", 3, 3, 6),
         ("zero_bubble_v", 2, 2, 4), ("zero_bubble_v", 3, 2, 6), ("zero_bubble_v", 4, 2, 8), ("zero_bubble_v", 4, 2, 16)]



def renumbered(actions):
    """PyTorch's table numbers the forwards of 1F1B's last rank from 1 on; its runs take them in order from 0."""
    taken = {}
    for a in actions:
        index = a.microbatch_index
        if a.computation_type.value == "F":
            index = taken[a.stage_index] = taken.get(a.stage_index, -1) + 1
        yield f"{a.computation_type.value}{a.stage_index}.{index}"


stored = []
for kind, ranks, stages_of_rank, micro_batches in SIZES:
    actions = order(KINDS[kind], ranks, stages_of_rank, micro_batches)
    texts = [" ".join(renumbered(a for a in actions[rank] if a is not None and a.computation_type.value in "FBIW"))
             for rank in range(ranks)]
    stored.append({"kind": kind, "ranks": ranks, "stages_per_rank": stages_of_rank, "micro_batches": micro_batches,
                   "actions": texts})
OUT.write_text(json.dumps(stored, indent=1) + "\n")
