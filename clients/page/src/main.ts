/** What a server or a fleet does now, from its live feed. */
import { clock } from "./charts";
import { byId } from "./dom";
import { Refused, type View, watch } from "./feed";
import { Fleet } from "./fleet";
import { showHeadlines } from "./headlines";
import { Playground } from "./playground";
import { about, Server } from "./server";
import { forgetKey, keepKey, keptKey } from "./session";

const AGAIN_MS = 2000;

let shown: Server | Fleet | undefined;
let playground: Playground | undefined;

function say(text: string, look = ""): void {
  byId("state").textContent = text;
  byId("state").className = look;
}

function show(view: View): void {
  say(`Live, as of ${clock(view.at_s)}.`);
  byId("login").hidden = true;
  byId("logout").hidden = false;
  byId("about").textContent = about(view);
  showHeadlines(view);
  playground ??= new Playground();
  shown ??= view["fleet"] === true ? new Fleet(playground) : new Server(playground);
  shown.show(view);
}

async function keepWatching(key: string): Promise<void> {
  say("Connecting.");
  for (;;) {
    try {
      await watch(key, show);
      say("Lost: the server ended the feed; it is asked again.", "bad");
    } catch (error) {
      if (error instanceof Refused) {
        forgetKey();
        say("The key is refused.", "bad");
        byId("login").hidden = false;
        byId("key").focus();
        return;
      }
      say("Lost: the server does not answer; it is asked again.", "bad");
    }
    await new Promise((done) => setTimeout(done, AGAIN_MS));
  }
}

/** Says before anyone has given a key which server this is. */
async function introduce(): Promise<void> {
  try {
    const answer = await fetch("about.json", { cache: "no-store", credentials: "omit", redirect: "error" });
    const { what } = (await answer.json()) as { what: unknown };
    byId("what").textContent = `This is the sloserve ${what === "gateway" ? "gateway" : "server"} at ${location.host}.`;
  } catch {
    byId("what").textContent = `This is ${location.host}.`;
  }
}

byId<HTMLFormElement>("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = byId<HTMLInputElement>("key"), key = field.value;
  field.value = "";
  keepKey(key);
  void keepWatching(key);
});
byId("logout").addEventListener("click", () => {
  forgetKey();
  location.reload();
});
void introduce();
const kept = keptKey();
if (kept !== "") void keepWatching(kept);
else byId("login").hidden = false;
