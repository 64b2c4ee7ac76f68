/** States of instances and models in words. */
const SAYS: Record<string, string> = {
  empty: "no model", serving: "serving", draining: "ending its streams", swapping: "switching models", failed: "failed", lost: "silent",
  active: "served", coming: "on its way", warm: "in host memory", cold: "on disk", unavailable: "on no instance",
};
export const inWords = (state: string): string => SAYS[state] ?? state;
