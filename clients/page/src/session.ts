/** The admin key for as long as this tab lives: it survives a reload, and is forgotten on logout or when it is refused.
 * Each address of a page has its own, so that two servers behind one proxy do not share a key. */

const NAME = `sloserve-admin-key ${location.pathname}`;
let key = "";

export function keptKey(): string {
  try {
    return (key = sessionStorage.getItem(NAME) ?? "");
  } catch {
    return ""; // the browser keeps nothing for this page
  }
}

export function adminKey(): string {
  return key;
}

export function keepKey(given: string): void {
  key = given;
  try {
    sessionStorage.setItem(NAME, given);
  } catch {
    // It is asked for again after a reload.
  }
}

export function forgetKey(): void {
  key = "";
  try {
    sessionStorage.removeItem(NAME);
  } catch {
    // Nothing was kept.
  }
}
