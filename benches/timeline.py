#!/usr/bin/env python3
"""Where the steps of a run go, from what timeline.c wrote.

    benches/timeline.py RUN.csv [LAST_KERNEL]

A step ends with LAST_KERNEL (top_logits_pick). Steps of the same kernels over as many rows are put together, the first of them left out. Of each
kernel: how many a step, how far it moved the end of the work (`advance`: launches overlap, so that is what it costs), how long it was there, and how
long after the end of the one before it began.
"""

import collections
import sys

# A run has a few of them while graphs are recorded.
FIRST, FEWEST = 4, 8


def launches(path):
    for line in open(path):
        begin, end, name, *grid = line.strip().split(",")
        yield int(begin), int(end), name, "x".join(grid)


def steps(path, last):
    step = []
    for launch in sorted(launches(path)):
        step.append(launch)
        if launch[2] == last:
            yield step
            step = []


def place(names, i):
    """A kernel's name; those that add to the residual stream by what they follow."""
    if "_add_" not in names[i]:
        return names[i]
    return names[i] + (" of an MLP" if "swiglu" in names[i - 1] else " of a mixer")


def main(path, last="top_logits_pick"):
    alike = collections.defaultdict(list)
    for step in steps(path, last):
        rows = next((grid for _, _, name, grid in step if name == "embed_rows"), "")
        alike[rows, tuple(launch[2] for launch in step)].append(step)
    for (rows, names), group in sorted(alike.items(), key=lambda item: -len(item[1])):
        group = group[FIRST:]
        if len(group) < FEWEST:
            continue
        mean = lambda value: sum(map(value, group)) / len(group) / 1e3
        span = mean(lambda step: step[-1][1] - step[0][0])
        print(f"{len(group)} steps of {len(names)} kernels, grid of the embedding {rows}: {span:.1f} us")
        found = {}
        for i in range(len(names)):
            before = (lambda step: step[i - 1][1]) if i else (lambda step: step[0][0])
            sums = found.setdefault((place(names, i), group[0][i][3]), [0, 0.0, 0.0, 0.0])
            sums[0] += 1
            sums[1] += mean(lambda step: step[i][1] - before(step))
            sums[2] += mean(lambda step: step[i][1] - step[i][0])
            sums[3] += mean(lambda step: step[i][0] - before(step))
        for (name, grid), (n, advance, there, after) in sorted(found.items(), key=lambda item: -item[1][1]):
            print(
                f"  {name:32} {grid:12} {n:4}  advance {advance:8.1f}, {advance / n:7.2f} each,"
                f" there {there / n:7.2f}, begun {after / n:7.2f} after the end before"
            )


if __name__ == "__main__":
    main(*sys.argv[1:3])
