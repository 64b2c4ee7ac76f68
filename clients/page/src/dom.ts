/** Elements whose text is only ever text: nothing that the server names becomes markup. */

export interface Cell {
  text: string;
  look?: "bad" | "held" | "dim" | undefined;
}

export function byId<T extends HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

export function table(into: HTMLElement, head: string[], rows: (string | Cell)[][]): void {
  const made = document.createElement("table");
  const top = made.createTHead().insertRow();
  for (const name of head) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = name;
    top.append(cell);
  }
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const one of row) {
      const cell = line.insertCell();
      cell.textContent = typeof one === "string" ? one : one.text;
      if (typeof one !== "string" && one.look) cell.className = one.look;
    }
  }
  into.replaceChildren(made);
}

export function lines(into: HTMLElement, cells: Cell[]): void {
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
