// Which known key was probably meant by one that is not known.

/** How many letters have to be changed, added or left out to make one text of the other. */
function distance(one, other) {
  let row = [...Array(other.length + 1).keys()];
  for (let i = 1; i <= one.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= other.length; j += 1)
      next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (one[i - 1] === other[j - 1] ? 0 : 1));
    row = next;
  }
  return row[other.length];
}

/** The known key that was probably meant by `key`; undefined if none is alike. */
export function nearest(hints, key) {
  const typed = key.toLowerCase().replaceAll('_', '-');
  const far = (hint) => Math.min(distance(hint.key, typed), distance(hint.key.replace(/^x-/, ''), typed));
  const [best] = hints.map((hint) => [far(hint), hint]).sort(([a], [b]) => a - b);
  return best && best[0] <= Math.min(3, typed.length / 3) ? best[1] : undefined;
}
