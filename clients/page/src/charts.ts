/** Lines over the last ten minutes; what is older is forgotten. */
import uPlot from "uplot";
import { byId } from "./dom";

const MOST = 1200;

export class Chart {
  private data: (number | null)[][];
  private plot: uPlot | undefined;
  private readonly into: HTMLElement;

  constructor(id: string, private readonly series: uPlot.Series[], private readonly bands: uPlot.Band[] = []) {
    this.into = byId(id);
    this.data = [[], ...series.map(() => [])];
    addEventListener("resize", () => this.plot?.setSize(this.size()));
  }

  add(at_s: number, values: (number | null)[]): void {
    [at_s, ...values].forEach((value, i) => {
      this.data[i]!.push(value);
      if (this.data[i]!.length > MOST) this.data[i]!.shift();
    });
    if (this.plot === undefined) this.plot = this.made();
    else this.plot.setData(this.data as uPlot.AlignedData);
  }

  private size(): { width: number; height: number } {
    return { width: Math.max(this.into.clientWidth, 200), height: 150 };
  }

  private made(): uPlot {
    const options: uPlot.Options = {
      ...this.size(), padding: [null, 30, null, null], series: [{}, ...this.series.map((one) => ({ ...one, points: { show: false } }))], bands: this.bands, axes: axes(clock), cursor: { show: false },
      legend: LEGEND, scales: { y: { range: [0, 105] } },
    };
    return new uPlot(options, this.data as uPlot.AlignedData, this.into);
  }
}

const LEGEND: uPlot.Legend = {
  live: false, markers: { width: 0, fill: (plot, i) => (plot.series[i]!.stroke as (plot: uPlot, i: number) => string)(plot, i) },
};

/** The time of day, with seconds where what is shown beside it is closer than a minute. */
export function clock(at_s: number, step_s = 1): string {
  const shown: Intl.DateTimeFormatOptions = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  return new Date(at_s * 1e3).toLocaleTimeString([], step_s < 60 ? { ...shown, second: "2-digit" } : shown);
}

function axes(said: (x: number, step: number) => string): uPlot.Axis[] {
  const ink = () => getComputedStyle(document.body).getPropertyValue("--dim");
  const grid = { stroke: () => getComputedStyle(document.body).getPropertyValue("--line"), width: 1 };
  const values: uPlot.Axis.DynamicValues = (_plot, at, _axis, _space, step) => at.map((x) => said(x, step));
  return [{ stroke: ink, grid, values, space: 80, size: 32 }, { stroke: ink, grid, size: 40 }];
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
