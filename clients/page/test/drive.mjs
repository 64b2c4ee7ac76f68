// Looks at the page in a real browser and prints what it found as JSON; tests/wire/test_watch_page.py asks and judges.
// Usage: node drive.mjs CHROMIUM URL KEY FRAMES FOLDER
import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";
import { shrink } from "./small-png.mjs";

const [executablePath, url, key, frames, folder] = process.argv.slice(2);
/** Widths and colours of the pictures beside the usual one. */
const kept = ["360 dark", "1920 dark"];
const args = ["--no-sandbox", "--js-flags=--expose-gc", "--enable-precise-memory-info"];
const browser = await chromium.launch({ executablePath, args });
const found = { errors: [], requests: [] };
const page = await browser.newPage({ viewport: { width: 1280, height: 800 }, bypassCSP: false });
page.on("console", (message) => ["error", "warning"].includes(message.type()) && found.errors.push(message.text()));
page.on("pageerror", (error) => found.errors.push(String(error)));
page.on("request", (request) => found.requests.push(request.url()));
await page.addInitScript(() => {
  document.addEventListener("securitypolicyviolation", (event) => console.error("CSP " + event.violatedDirective));
});
const state = () => page.textContent("#state");
const login = async (given) => {
  await page.focus("#key");
  await page.keyboard.type(given);
  await page.keyboard.press("Enter");
};

await page.goto(url);
await page.waitForFunction(() => document.querySelector("#what").textContent !== "");
found.form = await page.textContent("#login");
await login("wrong");
await page.waitForFunction(() => document.querySelector("#state").textContent.includes("refused"));
found.refused = await state();
found.afterRefusal = found.errors.splice(0); // the browser itself logs the 401
await login(key);
await page.waitForSelector("#main:not([hidden])");
await page.waitForFunction(() => document.querySelector("#lanes").clientHeight > 100);
found.formIsSeen = await page.isVisible("#login");
found.images = await page.evaluate(() => document.images.length);
found.first = await page.textContent("#headlines");
found.title = await page.title();
const cells = (id) => page.evaluate((id) => [...document.querySelectorAll(`${id} tr`)].map((row) => [...row.cells].map((cell) => cell.textContent)), id);
found.classes = await cells("#classes");
found.about = await page.textContent("#about");
await page.waitForFunction(() => document.querySelectorAll("#tiles .tile").length > 8);
found.tiles = await page.evaluate(() => [...document.querySelectorAll("#tiles .tile")].map((tile) => [...tile.children].slice(0, 3).map((one) => one.textContent)));
await page.waitForSelector("#cache canvas");
await page.waitForTimeout(300);
// A chart that is drawn from the server's history has ink over most of its width before a minute has passed.
found.inked = await page.evaluate(() => ["attainment", "queue", "tokens", "cache"].map((id) => {
  const canvas = document.querySelector(`#${id} canvas`), { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const isInk = (x, y) => { const at = 4 * (y * width + x); return Math.max(data[at], data[at + 1], data[at + 2]) - Math.min(data[at], data[at + 1], data[at + 2]) > 60; };
  const columns = Array.from({ length: width }, (_, x) => Array.from({ length: height }, (_, y) => y).some((y) => isInk(x, y)));
  return columns.filter(Boolean).length / width;
}));
found.gpus = await cells("#gpus");
found.text = await page.textContent("body");
await page.waitForSelector("#by-tenant:not([hidden])");
found.tenants = await page.evaluate(() => [...document.querySelectorAll("#tenants tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent)));
found.badTenants = await page.evaluate(() => [...document.querySelectorAll("#tenants .bad")].map((cell) => cell.textContent));
found.moreTenants = await page.textContent("#more-tenants");
found.predictions = await cells("#predictions");
found.promises = await cells("#promises");
found.off = await page.evaluate(() => [...document.querySelectorAll("#by-prediction .bad, #by-promise .bad")].map((cell) => cell.textContent));
found.marks = await page.evaluate(() => [...document.querySelectorAll("#predictions .gauge")].map((cell) => ["from", "to", "at"].map((name) => cell.style.getPropertyValue(`--${name}`))));
found.openTasks = await page.evaluate(() => [...document.querySelectorAll("#tasks tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent)));
found.lateTasks = await page.evaluate(() => [...document.querySelectorAll("#tasks .bad")].map((cell) => cell.textContent));
found.moreTasks = await page.textContent("#more-tasks");
// No request is chosen yet, so that none can be explained.
found.explains = [await page.isVisible("#explain")];
await page.focus("#lanes");
// The key and the reading are one task: between two, time goes on and the first request may become late.
found.why = await page.evaluate(() => {
  document.querySelector("#lanes").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown" }));
  return document.querySelector("#why").textContent;
});
found.fold = await page.textContent("#late");
const laneHeight = () => page.evaluate(async () => {
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return document.querySelector("#rest").clientHeight + document.querySelector("#lanes").clientHeight;
});
found.lanesHigh = [await laneHeight()];
await page.click("#late");
found.lanesHigh.push(await laneHeight());
found.unfold = await page.textContent("#late");
await page.evaluate(() => {
  for (let i = 0; i < 400 && document.querySelector("#explain").hidden; i++) document.querySelector("#lanes").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown" }));
});
found.explains.push(await page.textContent("#explain"));
await page.click("#explain");
await page.waitForFunction(() => document.querySelector("#explained").textContent !== "");
found.explains.push(await page.evaluate(() => [...document.querySelectorAll("#explained p")].map((line) => line.textContent)));
await page.click("#late");
await page.focus("#lanes");
found.whyIsSeen = await page.evaluate(() => {
  const { top, bottom } = document.querySelector("#why").getBoundingClientRect();
  return top >= 0 && bottom <= innerHeight;
});
const picture = async (name, of = page) => {
  if (of === page) await page.evaluate(() => scrollTo(0, 0));
  await page.waitForTimeout(300);
  await of.screenshot({ path: `${folder}/${name}` });
  if (process.env.SLOSERVE_SCREENSHOTS) shrink(`${folder}/${name}`);
};
// A policy: what is tried, refused, told and changed.
const verdict = () => page.textContent("#verdict");
const change = () => page.textContent("#change");
const tries = async (name) => {
  await page.fill("#wanted", name);
  await page.focus("#wanted");
  await page.keyboard.press("Enter");
};
found.changeIs = [await change()];
await tries("nosuch");
await page.waitForFunction(() => document.querySelector("#verdict").textContent.includes("Refused"));
found.unknown = await verdict();
found.afterUnknown = found.errors.splice(0); // the browser itself logs the 400
await tries("sjf");
await page.waitForFunction(() => document.querySelector("#change").textContent.includes("sjf"));
found.verdict = await verdict();
found.changeIs.push(await change());
await page.click("#change");
found.question = await page.textContent("#confirm");
await page.click("#no");
found.changedByNo = await page.textContent("#engines");
await page.click("#change");
await page.fill("#by", "anna");
await page.keyboard.press("Enter");
await page.waitForFunction(() => document.querySelector("#engines").textContent.includes("policy sjf"));
found.changeIs.push(await page.isDisabled("#change"));
found.atWork = await page.textContent("#at-work");
await page.click("#undo");
found.undoes = await page.textContent("#asked");
await page.click("#yes");
await page.waitForFunction(() => document.querySelector("#engines").textContent.includes("policy edf"));
found.afterUndo = await page.textContent("#at-work");
// A request of the playground.
await page.selectOption("#p-route", "completions");
await page.selectOption("#p-class", "interactive");
for (const [name, value] of Object.entries({ prompt: "the sea", ttft: "500", e2e: "900", tds: "20", key: "user-key-canary" })) await page.fill(`#p-${name}`, value);
await page.focus("#p-tds");
await page.keyboard.press("Enter");
await page.waitForFunction(() => /^\d+ tokens are delivered, 1\d digested/.test(document.querySelector("#told").textContent));
found.early = (await page.textContent("#told")).match(/\d+/g).map(Number);
await page.waitForFunction(() => document.querySelector("#told").textContent.startsWith("Read to its end"), undefined, { timeout: 15000 });
found.read = await page.textContent("#told");
found.reply = await page.textContent("#reply");
found.report = await page.textContent("#report");
await picture("watch-playground.png", await page.$("#playground"));
await page.setViewportSize({ width: 1280, height: 960 });
// The least of some: what a frame that has just come needs is not kept.
const heap = () => page.evaluate(async () => {
  const sizes = [];
  for (let i = 0; i < 6; i++) {
    window.gc();
    sizes.push(performance.memory.usedJSHeapSize);
    await new Promise((done) => setTimeout(done, 70));
  }
  return Math.min(...sizes);
});
// Of tasks the processor time is what counts: others use the processors too.
const traced = ["disabled-by-default-devtools.timeline", "__metadata"];
const after = async (of, count) => {
  await browser.startTracing(page, { categories: traced });
  const from = Number(await (await fetch(url + "../frames")).text());
  while (Number(await (await fetch(url + "../frames")).text()) < from + count) await new Promise((done) => setTimeout(done, 200));
  const { traceEvents } = JSON.parse((await browser.stopTracing()).toString());
  const main = traceEvents.filter((one) => one.name === "thread_name" && one.args.name === "CrRendererMain").map((one) => `${one.pid} ${one.tid}`);
  const tasks = traceEvents.filter((one) => one.name === "RunTask" && one.tdur !== undefined && main.includes(`${one.pid} ${one.tid}`));
  found.tasks += tasks.length;
  found.longest[of] = Math.max(found.longest[of] ?? 0, ...tasks.map((one) => one.tdur / 1e3));
  return heap();
};
found.tasks = 0;
found.longest = {};
found.heap = [await after("server", Number(frames) / 3), await after("server", (2 * Number(frames)) / 3)];
await page.focus("#lanes");
await page.keyboard.press("ArrowDown");
await page.keyboard.press("ArrowDown");
await page.keyboard.press("ArrowDown");
await picture("watch-light.png");
const sections = await page.evaluate(() => {
  const all = ["by-prediction", "by-promise"].map((id) => document.getElementById(id).getBoundingClientRect());
  const [x, y] = [Math.min(...all.map((one) => one.left)), Math.min(...all.map((one) => one.top)) + scrollY];
  return { x, y, width: Math.max(...all.map((one) => one.right)) - x, height: Math.max(...all.map((one) => one.bottom)) + scrollY - y };
});
await picture("watch-promises.png", { screenshot: ({ path }) => page.screenshot({ path, fullPage: true, clip: sections }) });
const stored = () => page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie]));
found.stored = await stored();
found.address = page.url();
found.overflow = [];
found.scrolls = [];
for (const [width, height] of [[360, 740], [1280, 960], [1920, 1080]]) {
  await page.setViewportSize({ width, height });
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    await page.waitForTimeout(300);
    found.overflow.push(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth));
    found.scrolls.push(...await page.evaluate(([width, colour]) => [...document.querySelectorAll("#main .wide")].filter((one) => one.scrollWidth > one.clientWidth + 1)
      .map((one) => `${one.id} at ${width} ${colour}: ${one.scrollWidth} of ${one.clientWidth}`), [width, colorScheme]));
    if (kept.includes(`${width} ${colorScheme}`)) await picture(`watch-${colorScheme}-${width}.png`);
  }
}
const errors = [...found.errors];
// The page's policy lets no script in but its own, so axe looks at it in an isolated world of the debugger.
const cdp = await page.context().newCDPSession(page);
const { frameTree } = await cdp.send("Page.getFrameTree");
const { executionContextId: contextId } = await cdp.send("Page.createIsolatedWorld", { frameId: frameTree.frame.id });
const axe = readFileSync(new URL("../node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
await cdp.send("Runtime.evaluate", { contextId, expression: axe });
const ask = "axe.run().then((r) => JSON.stringify(r.violations.map((v) => [v.impact, v.id, v.nodes[0].html])))";
const judged = await cdp.send("Runtime.evaluate", { contextId, expression: ask, awaitPromise: true });
found.axe = JSON.parse(judged.result.value ?? "null");
await fetch(url + "../down");
await page.waitForFunction(() => document.querySelector("#state").textContent.startsWith("Lost"));
found.lost = await state();
await fetch(url + "../up");
await page.waitForFunction(() => document.querySelector("#state").textContent.startsWith("Live"), undefined, { timeout: 15000 });
found.back = await state();
found.errors.length = 0; // the browser itself logs what it cannot reach
await fetch(url + "../fleet");
await page.setViewportSize({ width: 1280, height: 1040 });
await page.reload();
await page.waitForSelector("#fleet:not([hidden])"); // without asking for the key again
found.fleetFirst = await page.textContent("#headlines");
found.fleet = await page.textContent("#fleet");
found.fleetCanTry = await page.isVisible("#playground");
await page.waitForSelector("#fleet-tokens canvas");
found.fleetTiles = await page.evaluate(() => document.querySelectorAll("#fleet-tiles .tile").length);
found.images += await page.evaluate(() => document.images.length);
await after("fleet", 120);
// Each lane as the colours that follow each other from left to right, short ones left out but where they alternate.
found.lanes = await page.evaluate(() => {
  const canvas = document.querySelector("#held"), names = { "47,129,247": "chat", "26,158,92": "other", "179,38,30": "bad", "255,138,128": "bad" };
  const left = Math.ceil(Math.min(150, canvas.clientWidth * 0.3) * devicePixelRatio), wide = canvas.width - left - 4;
  const { data } = canvas.getContext("2d").getImageData(left, 0, wide, canvas.height);
  return [24, 46, 67].map((y, lane) => {
    const from = 4 * wide * y * devicePixelRatio;
    const seen = Array.from({ length: wide }, (_, i) => names[data.slice(from + 4 * i, from + 4 * i + 3)] ?? "bare");
    const runs = [];
    for (const one of seen) if (runs.at(-1)?.[0] === one) runs.at(-1)[1]++; else runs.push([one, 1]);
    return runs.filter(([, size]) => lane > 0 || size > 20).map(([name]) => name).join(" ");
  });
});
await picture("watch-fleet.png");
const scrollsOfFleet = async () => {
  for (const width of [360, 1920, 1280]) {
    await page.setViewportSize({ width, height: 860 });
    await page.waitForTimeout(300);
    found.scrolls.push(...await page.evaluate((width) => [...document.querySelectorAll("#fleet .wide")].filter((one) => one.scrollWidth > one.clientWidth + 1)
      .map((one) => `${one.id} at ${width}: ${one.scrollWidth} of ${one.clientWidth}`), width));
  }
};
await scrollsOfFleet();
// Names that have room are whole: of a group on a wide screen, of an instance and its state on a phone.
const cut = async (width, cells) => {
  await page.setViewportSize({ width, height: 860 });
  await page.waitForTimeout(300);
  return page.evaluate((cells) => [...document.querySelectorAll(cells)].filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent), cells);
};
found.cut = [...await cut(1920, "#groups td"), ...await cut(360, "#instances td:nth-child(-n+2)"), ...await cut(1280, "#groups td:nth-child(2)")];
await fetch(url + "../crowd");
found.fleetHeap = [await after("crowd", 70), await after("crowd", 140)];
await scrollsOfFleet(); // now with names and figures as long as they come
const instances = () => page.evaluate(() => [document.querySelectorAll("#instances tbody tr").length, document.querySelectorAll("#instances .bad").length, document.querySelector("#more-instances").textContent]);
found.instances = [await instances()];
await page.click("#more-instances");
found.instances.push(await instances());
await page.click("#more-instances");
found.errors = [...errors, ...found.errors];
await page.click("#logout");
await page.waitForSelector("#login:not([hidden])");
found.afterLogout = await stored();
await page.reload();
found.asksAgain = await page.isVisible("#login");
console.log(JSON.stringify(found));
await browser.close();
