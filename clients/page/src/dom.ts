/** Elements whose text is only ever text: nothing that the server names becomes markup. */

/** A scale below a text: a band on it and a mark, as parts of its width; a mark beyond an end stands at the end. */
export interface Gauge {
  from: number;
  to: number;
  at: number;
}

export interface Cell {
  text: string;
  look?: string | undefined;
  /** A share from 0 to 1, drawn as a bar behind the text. */
  share?: number | null | undefined;
  gauge?: Gauge | undefined;
}

export function byId<T extends HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

/** Returns a new element with text. */
export function made<K extends keyof HTMLElementTagNameMap>(tag: K, text = "", look = ""): HTMLElementTagNameMap[K] {
  const one = document.createElement(tag);
  one.textContent = text;
  if (look !== "") one.className = look;
  return one;
}

/** Shows a table, of which the first `words` columns hold words and the others figures. A table that exists is changed
 * where it differs, since laying out a new one takes long. */
export function table(into: HTMLElement, words: number, head: string[], rows: (string | Cell)[][]): void {
  let shown = into.querySelector("table");
  if (shown === null || shown.tHead!.textContent !== head.join("")) {
    shown = made("table", "", `words-${words}`);
    const top = shown.createTHead().insertRow();
    for (const name of head) {
      const cell = made("th", name);
      cell.scope = "col";
      top.append(cell);
    }
    shown.createTBody();
    into.replaceChildren(shown);
  }
  const body = shown.tBodies[0]!;
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((row, i) => {
    const line = body.rows[i] ?? body.insertRow();
    row.forEach((one, j) => {
      const { text, look = "", share, gauge }: Cell = typeof one === "string" ? { text: one } : one;
      const cell = line.cells[j] ?? line.insertCell();
      if (cell.textContent !== text) {
        cell.textContent = text;
        if (j < words) cell.title = text; // a long name is cut
      }
      if (cell.className !== look) cell.className = look;
      if (cell.dataset["of"] !== head[j]) cell.dataset["of"] = head[j]!;
      if (gauge !== undefined) drawn(cell, gauge);
      if (share !== undefined) cell.style.setProperty("--share", `${Math.round((share ?? 0) * 100)}%`);
    });
  });
}

/** Puts a gauge below the text of a cell; one that is there already costs no new layout. */
function drawn(cell: HTMLElement, gauge: Gauge): void {
  for (const [name, value] of Object.entries(gauge) as [string, number][]) {
    const place = `${(Math.min(Math.max(value, 0), 1) * 100).toFixed(1)}%`;
    if (cell.style.getPropertyValue(`--${name}`) !== place) cell.style.setProperty(`--${name}`, place);
  }
}

/** Runs each part of some work in a task of its own, so that none holds up the reader for long. */
export function inTurn(...parts: (() => void)[]): void {
  const [first, ...rest] = parts;
  if (first === undefined) return;
  setTimeout(() => {
    first();
    inTurn(...rest);
  });
}

/** Returns a function that has `draw` run before the next frame, once however often it is called until then. Sizes that
 * `draw` reads need the layout of what was changed before, which that frame needs as well. */
export function onceAFrame(draw: () => void): () => void {
  let isDue = false;
  return () => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      draw();
    });
  };
}

export function lines(into: HTMLElement, cells: Cell[]): void {
  if (into.textContent === cells.map((one) => one.text).join("") && cells.length > 0) return;
  into.replaceChildren(...cells.map(({ text, look }) => made("p", text, look)));
}

/** A duration in the unit that suits it. A negative one, which clocks that differ make, is 0. */
export function duration(s: number | null): string {
  if (s === null) return "";
  const size = Math.max(s, 0);
  if (size < 10) return `${size.toFixed(1)} s`;
  if (size < 120) return `${size.toFixed(0)} s`;
  return size < 7200 ? `${(size / 60).toFixed(0)} min` : `${(size / 3600).toFixed(1)} h`;
}

/** How long it is until a deadline, or how late it is if the deadline has passed. */
export function due(left_s: number | null): string {
  return left_s === null || left_s >= 0 ? duration(left_s) : `${duration(-left_s)} late`;
}

/** The durations of one column in the unit and with the decimals that suit the longest; empty for none. Seconds go up to
 * 1,000, and keep a decimal as minutes do: a column often has seconds beside a tail of minutes. */
export function inOneUnit(seconds: (number | null)[]): [string, string[]] {
  const longest_s = Math.max(0, ...seconds.map((one) => Math.abs(one ?? 0)));
  const [unit, factor]: [string, number] = longest_s > 0 && longest_s < 1 ? ["ms", 1e3] : longest_s < 1000 ? ["s", 1]
    : longest_s < 7200 ? ["min", 1 / 60] : ["h", 1 / 3600];
  const shown = longest_s * factor, decimals = shown < 9.995 ? 2 : shown < 99.95 || unit === "s" || unit === "min" ? 1 : 0;
  return [unit, seconds.map((one) => (one === null ? "" : (one * factor).toFixed(decimals)))];
}

/** A column of times until deadlines, in one unit: its heading, and its cells, in which what is late says so. */
export function dueColumn(name: string, left_s: (number | null)[]): [string, Cell[]] {
  const [unit, texts] = inOneUnit(left_s.map((one) => (one === null ? null : Math.abs(one))));
  return [`${name}, ${unit}`, texts.map((text, i) => {
    const isLate = (left_s[i] ?? 0) < 0;
    return { text: isLate ? `${text} late` : text, look: isLate ? "bad" : undefined };
  })];
}

export function percent(share: number | null | undefined): string {
  return share === null || share === undefined ? "" : `${Math.round(share * 100)} %`;
}

/** The share of the requests that met all targets, and of how many, as a cell with a bar. */
export function share([ratio, had]: [number | null, number], look?: string): Cell {
  return ratio === null ? { text: "–", look: "dim", share: 0 } : { text: `${percent(ratio)} of ${whole(had)}`, look: `share ${look ?? ""}`.trim(), share: ratio };
}

// One formatter for each form: `toLocaleString` looks for one at each call, which took a third of the page's time.
const WHOLE = new Intl.NumberFormat("en-US"), DECIMAL = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** A number with commas between thousands. */
export const whole = (n: number): string => WHOLE.format(n);

export function count(n: number): Cell {
  return { text: whole(n), look: n === 0 ? "dim" : undefined };
}

/** A figure with at most one decimal; `some` for what is not known. */
export function figure(value: number | null): string {
  if (value === null) return "some";
  return Number.isInteger(value) ? whole(value) : DECIMAL.format(value);
}

/** One of the server's sentences with its two figures filled in. */
export function sentence(says: string, first: number | null, of: number | null): string {
  const number = first === null ? "some" : Math.floor(first).toFixed(0); // of a request, as in its key
  return says.replace("{number}", number).replace("{figure}", () => figure(first)).replace("{of}", () => figure(of));
}
