#!/usr/bin/env python3
"""Draws docs/speed.svg and docs/share.svg from result files of `sala-chat bench --json` (one or more objects a file).

    python3 benches/plot.py benches/results/h200-bench-*.json

speed.svg: decode speed over context length, a line for each form of the weights, with peers measured on the same card.
share.svg: the share of the card's measured read bandwidth that decoding reaches, a bar for each form.
Where files have the same point, the last file wins.
"""
import json
import math
import sys

# Tokens a second at a context, llama.cpp on an H200 with an 8B model (docs/performance.md names the build and the commands).
PEERS = {"llama.cpp F16, 8B": {4096: 198}, "llama.cpp Q4_K_M, 8B": {4096: 240, 131072: 82}}
NAMES = {"stored": "bf16"}
COLOURS = ["#2563eb", "#059669", "#d97706", "#dc2626", "#7c3aed", "#6b7280", "#9ca3af"]
FONT = 'font-family="system-ui, sans-serif" font-size="13"'


def objects(path):
    text, decoder, at = open(path).read(), json.JSONDecoder(), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        value, at = decoder.raw_decode(text, at)
        yield from value if isinstance(value, list) else [value]


def load(paths):
    speed, share = {}, {}
    for path in paths:
        for run in objects(path):
            for row in run.get("results", []):
                if row.get("memory", {}).get("pool") or not row.get("decode_tokens_per_s") or run.get("decode_steps", 0) < 64:
                    continue
                form = NAMES.get(row["weights"], row["weights"])
                speed.setdefault(form, {})[row["context"]] = row["decode_tokens_per_s"]
                if row["context"] <= 8192:
                    share[form] = row["read_bandwidth_share"]
    return speed, share


def svg(width, height, body):
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *body, "</svg>", ""])


def short(tokens):
    return f"{tokens // 1000 // 1000}M" if tokens >= 1_000_000 else f"{round(tokens / 1024)}K"


def plot_speed(speed):
    width, height, left, right, top, bottom = 720, 380, 60, 190, 20, 50
    series = {**speed, **PEERS}
    contexts = sorted({c for points in series.values() for c in points})
    most = 100 * math.ceil(max(max(p.values()) for p in series.values()) / 100)
    low, high = math.log2(min(contexts)), math.log2(max(contexts))
    x = lambda c: left + (math.log2(c) - low) / (high - low) * (width - left - right)
    y = lambda v: height - bottom - v / most * (height - top - bottom)
    out = []
    for value in range(0, most + 1, 100):
        out.append(f'<line x1="{left}" x2="{width - right}" y1="{y(value):.0f}" y2="{y(value):.0f}" stroke="#e5e7eb"/>')
        out.append(f'<text x="{left - 8}" y="{y(value) + 4:.0f}" text-anchor="end" {FONT}>{value}</text>')
    for context in contexts:
        out.append(f'<text x="{x(context):.0f}" y="{height - bottom + 20}" text-anchor="middle" {FONT}>{short(context)}</text>')
    out.append(f'<text x="{(width - right + left) / 2:.0f}" y="{height - 10}" text-anchor="middle" {FONT}>context, tokens</text>')
    out.append(f'<text x="{left - 45}" y="14" {FONT}>tokens per second</text>')
    for (name, points), colour in zip(series.items(), COLOURS):
        path = " ".join(f"{x(c):.0f},{y(v):.0f}" for c, v in sorted(points.items()))
        dash = ' stroke-dasharray="5 4"' if name in PEERS else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        out += [f'<circle cx="{x(c):.0f}" cy="{y(v):.0f}" r="3.5" fill="{colour}"/>' for c, v in points.items()]
        last = max(points)
        out.append(f'<text x="{x(last) + 10:.0f}" y="{y(points[last]) + 4:.0f}" fill="{colour}" {FONT}>{name}</text>')
    return svg(width, height, out)


def plot_share(share):
    width, bar, left = 720, 34, 90
    height = 50 + bar * len(share)
    scale = width - left - 60
    out = []
    for part in (0, 0.25, 0.5, 0.75, 1):
        at = left + part * scale
        out.append(f'<line x1="{at:.0f}" x2="{at:.0f}" y1="10" y2="{height - 30}" stroke="#e5e7eb"/>')
        out.append(f'<text x="{at:.0f}" y="{height - 12}" text-anchor="middle" {FONT}>{part:.0%}</text>')
    for i, (form, value) in enumerate(sorted(share.items(), key=lambda item: -item[1])):
        y = 12 + i * bar
        out.append(f'<text x="{left - 8}" y="{y + 19}" text-anchor="end" {FONT}>{form}</text>')
        out.append(f'<rect x="{left}" y="{y + 4}" width="{value * scale:.0f}" height="{bar - 12}" fill="{COLOURS[0]}"/>')
        out.append(f'<text x="{left + value * scale + 6:.0f}" y="{y + 19}" {FONT}>{value:.1%}</text>')
    return svg(width, height, out)


if __name__ == "__main__":
    speed, share = load(sys.argv[1:])
    if not speed:
        sys.exit(__doc__)
    open("docs/speed.svg", "w").write(plot_speed(speed))
    open("docs/share.svg", "w").write(plot_share(share))
