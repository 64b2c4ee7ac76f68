/** What is wrong, in the server's own sentences: the class, the cause and the next step, the worst class first. */
import { byId, made } from "./dom";
import type { View } from "./feed";
import { COLOURS } from "./strips";

let shown = "";

export function showHeadlines(view: View): void {
  const said = view["headlines"] as string[], alarms = view["alarms"] as boolean[] | undefined;
  const advice = (view["advice"] ?? []) as (string | null)[], causes = (view["causes"] ?? []) as (string | null)[];
  const classes = view["classes"] as string[];
  const calm = String(view["calm"] ?? "Every class is in time.");
  const now = JSON.stringify([said, alarms, advice, calm]);
  if (now === shown) return;
  shown = now;
  const isAlarm = (i: number) => alarms?.[i] ?? true;
  const wrong = said.map((text, i) => {
    const name = classes.find((one) => text.startsWith(`${one}: `)), box = made("div", "", isAlarm(i) ? "alarm" : "warning");
    const line = made("p"), cause = causes[i] ?? "", how = cause === "" ? text : text.slice(0, -`: ${cause}`.length);
    if (name !== undefined) line.append(made("b", name, `chip k${classes.indexOf(name) % COLOURS.length}`), ": ");
    line.append(name === undefined ? how : how.slice(name.length + 2));
    box.append(line);
    const isAsBefore = i > 0 && cause !== "" && cause === causes[i - 1] && advice[i] === advice[i - 1];
    const says = isAsBefore ? [["Cause and next step", "as above."]] : [["Cause", cause], ["Next step", advice[i]]];
    for (const [what, text] of says as [string, string | null][]) {
      if (!text) continue;
      const more = made("p", "", what === "Next step" ? "next" : "cause");
      more.append(made("b", `${what}:`), ` ${text}`);
      box.append(more);
    }
    return box;
  });
  byId("headlines").replaceChildren(...(wrong.length > 0 ? wrong : [made("div", calm, "calm")]));
  const late = said.flatMap((text, i) => (isAlarm(i) ? [text.split(": ")[0]!] : []));
  document.title = `${late.length > 0 ? `! ${late.join(", ")} – ` : ""}${String(view["model"] ?? "fleet")} – sloserve`;
}
