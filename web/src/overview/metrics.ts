// Reads the server's Prometheus metrics.

import { send } from "../api/client";

/** All samples of one scrape, by metric name. */
export type Samples = Map<string, { labels: Record<string, string>; value: number }[]>;

export async function fetchMetrics(): Promise<Samples> {
  return parse(await (await send("/metrics")).text());
}

export function parse(text: string): Samples {
  const samples: Samples = new Map();
  for (const line of text.split("\n")) {
    const [, name, inner = "", value] = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line) ?? [];
    if (!name || value === undefined) continue;
    const labels = Object.fromEntries(
      [...inner.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, key, text]) => [key, text]),
    );
    const known = samples.get(name);
    if (known) known.push({ labels, value: Number(value) });
    else samples.set(name, [{ labels, value: Number(value) }]);
  }
  return samples;
}

export function sum(
  samples: Samples,
  name: string,
  matches: (labels: Record<string, string>) => boolean = () => true,
): number {
  return (samples.get(name) ?? [])
    .filter(({ labels }) => matches(labels))
    .reduce((total, { value }) => total + value, 0);
}

/** The given quantile of the observations between two scrapes, estimated from histogram buckets. */
export function quantile(
  before: Samples,
  after: Samples,
  name: string,
  part: number,
  matches: (labels: Record<string, string>) => boolean,
): number | null {
  const count = (samples: Samples) => {
    const bounds = new Map<number, number>();
    for (const { labels, value } of samples.get(`${name}_bucket`) ?? []) {
      if (!matches(labels)) continue;
      const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
      bounds.set(bound, (bounds.get(bound) ?? 0) + value);
    }
    return bounds;
  };
  const old = count(before);
  const bounds = [...count(after)]
    .map(([bound, n]) => [bound, n - (old.get(bound) ?? 0)] as const)
    .sort(([a], [b]) => a - b);
  const all = bounds.at(-1)?.[1] ?? 0;
  if (all === 0) return null;
  const at = bounds.findIndex(([, n]) => n >= part * all);
  const [upper = 0, through = all] = bounds[at] ?? [];
  const [lower, below] = at > 0 ? (bounds[at - 1] ?? [0, 0]) : [0, 0];
  if (!Number.isFinite(upper)) return lower;
  return lower + (upper - lower) * ((part * all - below) / Math.max(1, through - below));
}
