// Builds the page into sloserve/wire/page, with the licence of what is bundled and the hash of each file.
import { createHash } from "node:crypto";
import { copyFileSync, readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const out = "../../sloserve/wire/page/";
const options = { bundle: true, minify: true, target: "es2022", legalComments: "none", logLevel: "warning" };
await build({ ...options, entryPoints: ["src/main.ts"], format: "esm", outfile: out + "page.js" });
await build({ ...options, entryPoints: ["src/page.css"], outfile: out + "page.css" });
copyFileSync("src/index.html", out + "index.html");
const { version } = JSON.parse(readFileSync("node_modules/uplot/package.json", "utf8"));
const licence = readFileSync("node_modules/uplot/LICENSE", "utf8");
writeFileSync(out + "LICENSES.txt", `page.js and page.css contain uPlot ${version}, under this licence:\n\n${licence}`);
const files = ["LICENSES.txt", "index.html", "page.css", "page.js"];
const hash = (name) => createHash("sha256").update(readFileSync(out + name)).digest("hex");
writeFileSync(out + "SHA256SUMS", files.map((name) => `${hash(name)}  ${name}\n`).join(""));
