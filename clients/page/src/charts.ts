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
    const ink = () => getComputedStyle(document.body).getPropertyValue("--dim");
    const grid = { stroke: () => getComputedStyle(document.body).getPropertyValue("--line"), width: 1 };
    const axes = [{ stroke: ink, grid }, { stroke: ink, grid, size: 40 }];
    const options: uPlot.Options = {
      ...this.size(), series: [{}, ...this.series.map((one) => ({ ...one, points: { show: false } }))], bands: this.bands, axes, cursor: { show: false },
      legend: { live: false }, scales: { y: { range: [0, 105] } },
    };
    return new uPlot(options, this.data as uPlot.AlignedData, this.into);
  }
}
