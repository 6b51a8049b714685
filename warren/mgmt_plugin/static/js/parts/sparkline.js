// A line as large as a word: how something went lately. The numbers beside it say how much.

import { formatNumber } from '../format.js';
import { html } from '../ui.js';

const WIDTH = 48;
const HEIGHT = 18;

/** `details` as the API gives them of a level, with samples, newest first; `what` is counted. */
export function Sparkline({ details, what }) {
  const values = (details?.samples ?? []).map(({ sample }) => sample).reverse();
  if (values.length < 2) return html`<span class="none">–</span>`;
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const x = (at) => ((at * (WIDTH - 2)) / (values.length - 1) + 1).toFixed(1);
  // What does not change lies on the ground, however much it is.
  const y = (value) => (most === least ? HEIGHT - 2 : HEIGHT - 2 - ((value - least) * (HEIGHT - 4)) / (most - least)).toFixed(1);
  const said = most === least ? `${formatNumber(most)} ${what} all the time` : `${formatNumber(least)} to ${formatNumber(most)} ${what}`;
  return html`<svg class="sparkline" width=${WIDTH} height=${HEIGHT} role="img" aria-label=${said}>
    <title>${said}</title>
    <polyline points=${values.map((value, at) => `${x(at)},${y(value)}`).join(' ')} />
  </svg>`;
}
