// Takes the pictures of docs/watch.md from a running server: node pictures.mjs CHROMIUM URL KEY FOLDER SECONDS
// Watches for SECONDS first, so that lanes have a course. Prints what does not fit, and the headlines, as JSON.
import { chromium } from "playwright-core";
import { shrink } from "./small-png.mjs";

const [executablePath, url, key, folder, seconds] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 1280, height: 960 } });
const found = { errors: [], wide: [] };
page.on("console", (message) => ["error", "warning"].includes(message.type()) && found.errors.push(message.text()));
page.on("pageerror", (error) => found.errors.push(String(error)));
const kept = async (name, options = {}) => {
  await page.screenshot({ path: `${folder}/${name}.png`, ...options });
  shrink(`${folder}/${name}.png`);
};
await page.goto(url);
await page.fill("#key", key);
await page.keyboard.press("Enter");
await page.waitForSelector("#main:not([hidden])");
await page.waitForTimeout(seconds * 1000);
found.headlines = await page.evaluate(() => [...document.querySelectorAll("#headlines p")].map((one) => one.textContent));
await page.focus("#lanes");
await page.keyboard.press("ArrowDown");
for (const [width, height] of [[1280, 960], [360, 740], [1920, 1080]]) {
  await page.setViewportSize({ width, height });
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    await page.waitForTimeout(1500);
    found.wide.push(...await page.evaluate(([width, colour]) => [document.documentElement, ...document.querySelectorAll(".wide")]
      .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => `${width} ${colour}: ${one.id || "page"}`), [width, colorScheme]));
    await page.evaluate(() => scrollTo(0, 0));
    if (width === 1280 && colorScheme === "light") {
      await kept("watch-light");
      const clip = await page.evaluate(() => {
        const all = ["by-tenant", "by-promise", "by-task", "by-prediction"].map((id) => document.getElementById(id).getBoundingClientRect()).filter((one) => one.width > 0);
        const [x, y] = [Math.min(...all.map((one) => one.left)), Math.min(...all.map((one) => one.top)) + scrollY];
        return { x, y, width: Math.max(...all.map((one) => one.right)) - x, height: Math.max(...all.map((one) => one.bottom)) + scrollY - y };
      });
      await kept("watch-tables", { fullPage: true, clip });
    }
    if (width === 360 && colorScheme === "dark") await kept("watch-dark-360");
    if (process.env.SLOSERVE_WHOLE_PAGES) await page.screenshot({ path: `${process.env.SLOSERVE_WHOLE_PAGES}/${width}-${colorScheme}.png`, fullPage: true });
  }
}
await page.setViewportSize({ width: 1280, height: 960 });
await page.emulateMedia({ colorScheme: "light" });
await page.selectOption("#p-route", "completions");
await page.selectOption("#p-class", "interactive");
for (const [name, value] of Object.entries({ ttft: "2000", tds: "20", tokens: "120" })) await page.fill(`#p-${name}`, value);
await page.click("#ask button[type=submit]");
await page.waitForFunction(() => /^Read to its end/.test(document.querySelector("#told").textContent), undefined, { timeout: 120000 }).catch(() => found.errors.push("the request of the playground has no end"));
await page.waitForTimeout(1000);
const of = await page.evaluate(() => { const { x, y, width, height } = document.querySelector("#playground").getBoundingClientRect(); return { x, y: y + scrollY, width, height }; });
await kept("watch-playground", { fullPage: true, clip: of });
console.log(JSON.stringify(found));
await browser.close();
