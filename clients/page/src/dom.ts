/** Elements whose text is only ever text: nothing that the server names becomes markup. */

export interface Cell {
  text: string;
  look?: string | undefined;
}

export function byId<T extends HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

/** Shows a table, of which the first `words` columns hold words and the others figures. One that is there is changed
 * where it differs, since laying out a new one takes long. */
export function table(into: HTMLElement, words: number, head: string[], rows: (string | Cell)[][]): void {
  let made = into.querySelector("table");
  if (made === null || made.tHead!.textContent !== head.join("")) {
    made = document.createElement("table");
    made.className = `words-${words}`;
    const top = made.createTHead().insertRow();
    for (const name of head) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = name;
      top.append(cell);
    }
    made.createTBody();
    into.replaceChildren(made);
  }
  const body = made.tBodies[0]!;
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((row, i) => {
    const line = body.rows[i] ?? body.insertRow();
    row.forEach((one, j) => {
      const cell = line.cells[j] ?? line.insertCell(), { text, look = "" } = typeof one === "string" ? { text: one } : one;
      if (cell.textContent !== text) {
        cell.textContent = text;
        if (j < words) cell.title = text; // a long name is cut
      }
      if (cell.className !== look) cell.className = look;
    });
  });
}

export function lines(into: HTMLElement, cells: Cell[]): void {
  if (into.textContent === cells.map((one) => one.text).join("") && cells.length > 0) return;
  into.replaceChildren(
    ...cells.map(({ text, look }) => {
      const line = document.createElement("p");
      line.textContent = text;
      if (look) line.className = look;
      return line;
    }),
  );
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

/** Shares of the requests that met all targets, and of how many. */
export function shares(attained: [number | null, number][]): string[] {
  return attained.map(([ratio, had]) => (ratio === null ? "" : `${Math.round(ratio * 100)} % of ${had}`));
}

/** A figure with at most one decimal; `some` for what is not known. */
export function figure(value: number | null): string {
  if (value === null) return "some";
  const digits = Number.isInteger(value) ? 0 : 1;
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** One of the server's sentences with its two figures filled in. */
export function sentence(says: string, first: number | null, of: number | null): string {
  return says.replace("{figure}", () => figure(first)).replace("{of}", () => figure(of));
}
