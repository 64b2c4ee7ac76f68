export { type BufferReport, type Stall } from "./pace.js";
export { DEFAULT_TDS, DEFAULT_TTFT_SECONDS, qoe, type Expectation } from "./qoe.js";
export { ResponseChunks, type Chunk } from "./sse.js";
export { TokenBuffer, type TokenBufferOptions } from "./token-buffer.js";
