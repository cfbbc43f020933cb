"""Reads a folder of event files with TensorBoard and compares it with the metrics file of the run.

    check_events.py EVENTS METRICS
"""

import json
import math
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
lines = [json.loads(line) for line in open(sys.argv[2])]
compared = 0
for tag in events.Tags()["scalars"]:
    expected = {line["step"]: line[tag] for line in lines if line.get(tag) is not None}
    found = {event.step: event.value for event in events.Scalars(tag)}
    assert found.keys() == expected.keys(), (tag, sorted(found), sorted(expected))
    for step, value in found.items():
        assert math.isclose(value, expected[step], rel_tol=1e-6), (tag, step, value, expected[step])
        compared += 1
print(f"{compared} numbers of {len(events.Tags()['scalars'])} curves are equal")
