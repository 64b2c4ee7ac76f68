/** Lines over time: the load of the last ten minutes, and the tokens of one request. */
import uPlot from "uplot";
import { byId, whole } from "./dom";

const HIGH = 150;

export interface Line {
  label: string;
  stroke: string;
}

/** Lines of the last ten minutes; where `most` is given, the axis ends there. */
export class Chart {
  private plot: uPlot | undefined;
  private readonly into: HTMLElement;

  constructor(id: string, private readonly shown: Line[], private readonly most?: number) {
    this.into = byId(id);
    addEventListener("resize", () => this.plot?.setSize(this.size()));
  }

  /** Draws values of each line at `at_s`. */
  show(at_s: number[], values: (number | null)[][]): void {
    const data = [at_s, ...values] as uPlot.AlignedData;
    if (this.plot === undefined) this.plot = this.made(data);
    else this.plot.setData(data);
  }

  private size(): { width: number; height: number } {
    return { width: Math.max(this.into.clientWidth, 200), height: HIGH };
  }

  private made(data: uPlot.AlignedData): uPlot {
    const options: uPlot.Options = {
      ...this.size(), padding: [8, 22, 0, 0], series: [{}, ...this.shown.map((one) => ({ ...one, width: 2, points: { show: false } }))],
      axes: axes(clock), cursor: { show: false }, legend: LEGEND,
      scales: {
        x: { range: (_plot, _least, most) => [most - 600, most] },
        y: { range: (_plot, _least, most) => [0, this.most ?? Math.max(most * 1.1, 1)] },
      },
    };
    return new uPlot(options, data, this.into);
  }
}

const LEGEND: uPlot.Legend = {
  live: false, markers: { width: 0, fill: (plot, i) => (plot.series[i]!.stroke as (plot: uPlot, i: number) => string)(plot, i) },
};

const MINUTES: Intl.DateTimeFormatOptions = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const BY_MINUTE = new Intl.DateTimeFormat([], MINUTES), BY_SECOND = new Intl.DateTimeFormat([], { ...MINUTES, second: "2-digit" });

/** The time of day, with seconds where what is shown beside it is closer than a minute. */
export function clock(at_s: number, step_s = 1): string {
  return (step_s < 60 ? BY_SECOND : BY_MINUTE).format(at_s * 1e3);
}

function axes(said: (x: number, step: number) => string): uPlot.Axis[] {
  const ink = () => getComputedStyle(document.body).getPropertyValue("--dim");
  const grid = { stroke: () => getComputedStyle(document.body).getPropertyValue("--line"), width: 1 };
  const values: uPlot.Axis.DynamicValues = (_plot, at, _axis, _space, step) => at.map((x) => said(x, step));
  const compact: uPlot.Axis.DynamicValues = (_plot, at) => at.map((y) => (y >= 1e4 ? `${y / 1e3}k` : whole(y)));
  const ticks = { ...grid, size: 4 };
  return [{ stroke: ink, grid, ticks, values, space: 70, size: 28 }, { stroke: ink, grid, ticks, values: compact, space: 30, size: 44 }];
}

const CURVES = ["#2f81f7", "#1a9e5c", "#8c959f"];

/** Counts over seconds. Returns what draws them: the seconds, then the counts of each label. */
export function curves(id: string, labels: string[]): (data: number[][]) => void {
  const into = byId(id);
  let plot: uPlot | undefined;
  const size = () => ({ width: Math.max(into.clientWidth, 200), height: 180 });
  addEventListener("resize", () => plot?.setSize(size()));
  return (data) => {
    if (plot !== undefined) {
      plot.setData(data as uPlot.AlignedData);
      return;
    }
    const series = labels.map((label, i) => ({
      label, stroke: CURVES[i % CURVES.length]!, width: 2, points: { show: false }, ...(label === "expected" ? { dash: [4, 4] } : {}),
    }));
    const options: uPlot.Options = {
      ...size(), series: [{}, ...series], axes: axes((x) => `${+x.toFixed(2)} s`), cursor: { show: false }, legend: LEGEND, scales: { x: { time: false } },
    };
    plot = new uPlot(options, data as uPlot.AlignedData, into);
  };
}
