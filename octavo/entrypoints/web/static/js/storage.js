// What the browser keeps. A browser that keeps nothing (private windows, a full disk) is no error.

const PREFIX = "octavo.";

export function load(name, area = localStorage) {
  try {
    return area.getItem(PREFIX + name);
  } catch {
    return null;
  }
}

/** Returns whether it was kept. */
export function save(name, value, area = localStorage) {
  try {
    area.setItem(PREFIX + name, value);
    return true;
  } catch {
    return false;
  }
}

export function forget(name, area = localStorage) {
  try {
    area.removeItem(PREFIX + name);
  } catch {
    // Nothing was kept.
  }
}
