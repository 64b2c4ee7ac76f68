// Looks at the page in a real browser and prints what it found as JSON; tests/wire/test_watch_page.py asks and judges.
// Usage: node drive.mjs CHROMIUM URL KEY FRAMES FOLDER
import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";

const [executablePath, url, key, frames, folder] = process.argv.slice(2);
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
found.text = await page.textContent("body");
await page.waitForSelector("#by-tenant:not([hidden])");
found.tenants = await page.evaluate(() => [...document.querySelectorAll("#tenants tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent)));
found.badTenants = await page.evaluate(() => [...document.querySelectorAll("#tenants .bad")].map((cell) => cell.textContent));
found.moreTenants = await page.textContent("#more-tenants");
found.openTasks = await page.evaluate(() => [...document.querySelectorAll("#tasks tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent)));
found.lateTasks = await page.evaluate(() => [...document.querySelectorAll("#tasks .bad")].map((cell) => cell.textContent));
found.moreTasks = await page.textContent("#more-tasks");
await page.focus("#lanes");
await page.keyboard.press("ArrowDown");
found.why = await page.textContent("#why");
found.whyIsSeen = await page.evaluate(() => {
  const { top, bottom } = document.querySelector("#why").getBoundingClientRect();
  return top >= 0 && bottom <= innerHeight;
});
const picture = async (name) => {
  await page.evaluate(() => scrollTo(0, 0));
  await page.waitForTimeout(300);
  await page.screenshot({ path: `${folder}/${name}` });
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
await (await page.$("section:has(#try)")).screenshot({ path: `${folder}/watch-policy.png` });
await page.click("#change");
await page.waitForFunction(() => document.querySelector("#engines").textContent.includes("policy sjf"));
found.changeIs.push(await page.isDisabled("#change"));
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
await page.waitForTimeout(300);
await (await page.$("#playground")).screenshot({ path: `${folder}/watch-playground.png` });
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
const after = async (count) => {
  await browser.startTracing(page, { categories: traced });
  const from = Number(await (await fetch(url + "../frames")).text());
  while (Number(await (await fetch(url + "../frames")).text()) < from + count) await new Promise((done) => setTimeout(done, 200));
  const { traceEvents } = JSON.parse((await browser.stopTracing()).toString());
  const main = traceEvents.filter((one) => one.name === "thread_name" && one.args.name === "CrRendererMain").map((one) => `${one.pid} ${one.tid}`);
  const tasks = traceEvents.filter((one) => one.name === "RunTask" && one.tdur !== undefined && main.includes(`${one.pid} ${one.tid}`));
  found.tasks += tasks.length;
  found.long.push(...tasks.map((one) => one.tdur / 1e3).filter((ms) => ms > 10));
  return heap();
};
found.tasks = 0;
found.long = [];
found.heap = [await after(Number(frames) / 3), await after((2 * Number(frames)) / 3)];
await page.focus("#lanes");
await page.keyboard.press("ArrowDown");
await page.keyboard.press("ArrowDown");
await page.keyboard.press("ArrowDown");
await picture("watch-light.png");
found.stored = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie]));
found.address = page.url();
await page.emulateMedia({ colorScheme: "dark" });
await page.setViewportSize({ width: 360, height: 740 });
await page.waitForTimeout(800);
found.overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
await picture("watch-dark-360.png");
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
await page.reload();
found.asksAgain = await page.isVisible("#login");
await page.setViewportSize({ width: 1100, height: 760 });
await login(key);
await page.waitForSelector("#fleet:not([hidden])");
found.fleetFirst = await page.textContent("#headlines");
found.fleet = await page.textContent("#fleet");
found.fleetCanTry = await page.isVisible("#playground");
found.images += await page.evaluate(() => document.images.length);
await after(120);
// Each lane as the colours that follow each other from left to right, short ones left out but where they alternate.
found.lanes = await page.evaluate(() => {
  const canvas = document.querySelector("#held"), names = { "47,129,247": "chat", "26,158,92": "other", "179,38,30": "bad", "255,138,128": "bad" };
  const left = Math.ceil(Math.min(150, canvas.clientWidth * 0.3) * devicePixelRatio), wide = canvas.width - left - 4;
  const { data } = canvas.getContext("2d").getImageData(left, 0, wide, canvas.height);
  return [4, 26, 47].map((y, lane) => {
    const from = 4 * wide * y * devicePixelRatio;
    const seen = Array.from({ length: wide }, (_, i) => names[data.slice(from + 4 * i, from + 4 * i + 3)] ?? "bare");
    const runs = [];
    for (const one of seen) if (runs.at(-1)?.[0] === one) runs.at(-1)[1]++; else runs.push([one, 1]);
    return runs.filter(([, size]) => lane > 0 || size > 20).map(([name]) => name).join(" ");
  });
});
await picture("watch-fleet.png");
await fetch(url + "../crowd");
found.fleetHeap = [await after(70), await after(140)];
found.errors = [...errors, ...found.errors];
console.log(JSON.stringify(found));
await browser.close();
