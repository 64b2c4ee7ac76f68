// Looks at pages of the documentation's site in a real browser; tests/docs/test_site.py asks and judges.
// Usage: node site.mjs CHROMIUM FOLDER PICTURES PAGE [PAGE ...]
import { chromium } from "playwright-core";

const [executablePath, folder, pictures, ...names] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const found = [];
for (const width of [360, 1280]) {
  const page = await browser.newPage({ viewport: { width, height: 900 } });
  for (const name of names) {
    await page.goto(`file://${folder}/${name}`);
    const seen = await page.evaluate(() => {
      const right = (one) => one.getBoundingClientRect().right;
      const scrolls = (one) => ["auto", "scroll"].includes(getComputedStyle(one).overflowX) && right(one) <= innerWidth + 1;
      const reached = (one) => right(one) <= innerWidth + 1 || (one !== document.body && (scrolls(one) || reached(one.parentElement)));
      const all = [...document.querySelectorAll("article *")];
      const flags = [...document.querySelectorAll("td:first-child code")].filter((one) => one.textContent.startsWith("--"));
      const blocks = [...document.querySelectorAll("article pre > code")];
      return {
        overflow: document.documentElement.scrollWidth - innerWidth,
        lost: all.filter((one) => !reached(one)).map((one) => one.textContent.trim().slice(0, 60)),
        broken: flags.filter((one) => one.getClientRects().length > 1).map((one) => one.textContent),
        hidden: blocks.slice(0, 1).map((one) => one.scrollWidth - one.clientWidth),
      };
    });
    await page.screenshot({ path: `${pictures}/${width}-${name.replaceAll("/", "-")}.png` });
    found.push({ width, name, ...seen });
  }
}
await browser.close();
console.log(JSON.stringify(found));
