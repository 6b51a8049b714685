// Preact and htm under one name. Text from the broker (names, keys, headers, bodies) reaches the page only as text
// children or attribute values, never as HTML.

import { h, render, Fragment } from '../vendor/preact.js';
import htm from '../vendor/htm.js';

export { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useErrorBoundary } from '../vendor/preact-hooks.js';
export { h, render, Fragment };
export const html = htm.bind(h);
