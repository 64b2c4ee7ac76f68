// Makes a screenshot small enough to be kept: its 256 most frequent colours, any other drawn in the nearest of them.
import { readFileSync, writeFileSync } from "node:fs";
import { crc32, deflateSync, inflateSync } from "node:zlib";

export function shrink(path) {
  const { width, height, pixels } = read(readFileSync(path));
  const counts = new Map();
  for (const colour of pixels) counts.set(colour, (counts.get(colour) ?? 0) + 1);
  const palette = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 256).map(([colour]) => colour);
  const place = new Map(palette.map((colour, i) => [colour, i]));
  const parts = (colour) => [colour >> 16, (colour >> 8) & 255, colour & 255];
  const nearest = (colour) => {
    const [r, g, b] = parts(colour);
    let best = 0, least = Infinity;
    palette.forEach((one, i) => {
      const [x, y, z] = parts(one), far = (r - x) ** 2 + (g - y) ** 2 + (b - z) ** 2;
      if (far < least) [best, least] = [i, far];
    });
    return best;
  };
  const lines = Buffer.alloc((width + 1) * height);
  pixels.forEach((colour, i) => {
    if (!place.has(colour)) place.set(colour, nearest(colour));
    lines[Math.floor(i / width) * (width + 1) + 1 + (i % width)] = place.get(colour);
  });
  const head = Buffer.alloc(13);
  head.writeUInt32BE(width, 0);
  head.writeUInt32BE(height, 4);
  head.set([8, 3, 0, 0, 0], 8);
  const signature = Buffer.from([137, 80, 78, 71, 13, 10, 26, 10]);
  const chunks = [["IHDR", head], ["PLTE", Buffer.from(palette.flatMap(parts))], ["IDAT", deflateSync(lines, { level: 9 })], ["IEND", Buffer.alloc(0)]];
  writeFileSync(path, Buffer.concat([signature, ...chunks.map(([name, data]) => chunk(name, data))]));
}

function chunk(name, data) {
  const named = Buffer.concat([Buffer.from(name), data]), size = Buffer.alloc(4), sum = Buffer.alloc(4);
  size.writeUInt32BE(data.length);
  sum.writeUInt32BE(crc32(named));
  return Buffer.concat([size, named, sum]);
}

/** The pixels of a PNG as browsers write it: eight bits a channel, with or without alpha, not interlaced. */
function read(file) {
  const width = file.readUInt32BE(16), height = file.readUInt32BE(20), each = file[25] === 6 ? 4 : 3;
  const data = [];
  for (let at = 8; at < file.length; at += 12 + file.readUInt32BE(at)) {
    if (file.toString("latin1", at + 4, at + 8) === "IDAT") data.push(file.subarray(at + 8, at + 8 + file.readUInt32BE(at)));
  }
  const raw = inflateSync(Buffer.concat(data)), wide = width * each, pixels = new Uint32Array(width * height);
  let before = new Uint8Array(wide);
  for (let y = 0; y < height; y++) {
    const filter = raw[y * (wide + 1)], line = new Uint8Array(wide);
    for (let x = 0; x < wide; x++) {
      const left = x < each ? 0 : line[x - each], up = before[x], corner = x < each ? 0 : before[x - each];
      const guess = [0, left, up, (left + up) >> 1, paeth(left, up, corner)][filter];
      line[x] = raw[y * (wide + 1) + 1 + x] + guess;
    }
    for (let x = 0; x < width; x++) pixels[y * width + x] = (line[x * each] << 16) | (line[x * each + 1] << 8) | line[x * each + 2];
    before = line;
  }
  return { width, height, pixels };
}

function paeth(left, up, corner) {
  const guess = left + up - corner, [a, b, c] = [left, up, corner].map((one) => Math.abs(guess - one));
  return a <= b && a <= c ? left : b <= c ? up : corner;
}
