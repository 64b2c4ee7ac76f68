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

export function duration(s: number | null): string {
  if (s === null) return "";
  const size = Math.abs(s);
  if (size < 10) return `${s.toFixed(1)} s`;
  if (size < 120) return `${s.toFixed(0)} s`;
  return size < 7200 ? `${(s / 60).toFixed(0)} min` : `${(s / 3600).toFixed(1)} h`;
}
