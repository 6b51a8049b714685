// The frame around every page: menu, top bar, alarms, the failure of a refresh, and the page itself.

import { ALERT_COLUMNS, alertsOf } from './alerts.js';
import { formatTime } from './format.js';
import { currentVhost, chooseVhost, href, listHref, place } from './router.js';
import { CHOICES_S, failure, freshness, interval, refreshNow, usePoll } from './refresh.js';
import { MENU, routeOf } from './routes.js';
import { SearchBox } from './searchbox.js';
import { logOut, mayMonitor, session } from './session.js';
import { showHelp, useShortcuts } from './shortcuts.js';
import { useStore } from './store.js';
import { theme } from './theme.js';
import { html, useEffect, useErrorBoundary, useRef, useState } from './ui.js';
import { warn } from './parts/notice.js';
import { Page, Trouble } from './parts/page.js';
import { Menu } from './parts/table.js';

function MenuLink({ segments, label, current }) {
  return html`<a href=${listHref(segments)} aria-current=${current ? 'page' : undefined}>${label}</a>`;
}

function Sidebar({ open, close, overview }) {
  const { path } = useStore(place);
  const box = useRef(null);
  useEffect(() => {
    if (open) box.current.querySelector('[aria-current]')?.focus();
  }, [open]);
  const onKeyDown = (event) => event.key === 'Escape' && open && close(true);
  return html`<nav ref=${box} onKeyDown=${onKeyDown} class="sidebar ${open ? 'open' : ''}" id="menu" aria-label="Pages" onClick=${(event) => event.target.closest('a') && close()}>
    <a class="brand" href=${listHref([])}><img src="favicon.svg" alt="" width="26" height="26" /> <span>Warren<small>${overview?.cluster_name}</small></span></a>
    ${MENU.map(([heading, entries]) => {
      const visible = entries.filter(([, , allowed]) => allowed());
      if (visible.length === 0) return null;
      return html`<div class="menu-group" key=${heading}>
        ${heading && html`<h2>${heading}</h2>`}
        ${visible.map(([segments, label]) => html`<${MenuLink} key=${label} segments=${segments} label=${label} current=${(path[0] ?? '') === (segments[0] ?? '')} />`)}
        ${heading === 'Node' && overview?.node && html`<a href=${href(['nodes', overview.node])} aria-current=${path[0] === 'nodes' ? 'page' : undefined}>Node</a>`}
      </div>`;
    })}
    <div class="menu-group"><h2>Reference</h2><a href="api/docs">HTTP API</a></div>
    <p class="version">${overview?.product_name ?? ''} ${overview?.product_version ?? overview?.rabbitmq_version ?? ''}</p>
  </nav>`;
}

function VhostPicker() {
  const vhosts = usePoll('vhosts?columns=name');
  useStore(place);
  const chosen = currentVhost();
  const names = [...new Set([...(vhosts.data ?? []).map((vhost) => vhost.name), ...(chosen ? [chosen] : [])])].sort();
  return html`<label class="vhost-picker"><span>Vhost</span>
    <select value=${chosen} onChange=${(event) => chooseVhost(event.target.value)}>
      <option value="" selected=${chosen === ''}>all</option>
      ${names.map((name) => html`<option key=${name} value=${name} selected=${name === chosen}>${name}</option>`)}
    </select>
  </label>`;
}

const THEMES = [
  ['system', 'As the system'],
  ['light', 'Light'],
  ['dark', 'Dark'],
];

function UserMenu() {
  const { name, tags } = useStore(session);
  const chosen = useStore(theme);
  const leave = () => logOut().catch((error) => warn(`You are still logged in: ${error.message}.`));
  return html`<${Menu} label=${html`<span class="user-name">${name}</span>`}>
    <p class="hint">${tags.join(', ') || 'no tags'}</p>
    <fieldset class="column-list">
      <legend>Colours</legend>
      ${THEMES.map(([value, label]) => html`<label key=${value}><input type="radio" name="theme" checked=${chosen === value} onChange=${() => theme.set(value)} /> ${label}</label>`)}
    </fieldset>
    <button type="button" class="small" onClick=${showHelp}>Keyboard shortcuts</button>
    <button type="button" class="small" onClick=${leave}>Log out</button>
  <//>`;
}

function RefreshPicker() {
  const seconds = useStore(interval);
  const at = useStore(freshness);
  return html`<div class="refresh">
    <button type="button" class="plain" onClick=${refreshNow} title="Refresh now (last at ${formatTime(at)})" aria-label="Refresh now">⟳</button>
    <select aria-label="Refresh every" value=${seconds} onChange=${(event) => interval.set(Number(event.target.value))}>
      ${CHOICES_S.map((choice) => html`<option key=${choice} value=${choice} selected=${choice === seconds}>${choice === 0 ? 'off' : `${choice} s`}</option>`)}
    </select>
  </div>`;
}

function Banners({ overview }) {
  const reason = useStore(failure);
  const nodes = usePoll(mayMonitor() ? `nodes?columns=${ALERT_COLUMNS}` : null);
  const alerts = (nodes.data ?? []).flatMap((node) => alertsOf(node).map((alert) => ({ node: node.name, ...alert })));
  return html`<div class="banners">
    <div role="status" aria-live="polite">
      ${reason && html`<p class="banner warning">This page is not up to date: ${reason}. It was fresh at ${formatTime(freshness.get())}. <button type="button" class="small" onClick=${refreshNow}>Try again</button></p>`}
    </div>
    <div role="status" aria-live="assertive">${alerts.map(
      ({ node, what, advice, page, where = 'cluster' }) => html`<div key=${`${node} ${what}`} class="banner alarm">
        <b>${node} ${what}</b>
        <span>${advice} ${page ? html`<a href=${listHref(page)}>Look at the ${where}</a>` : html`<a href=${href(['nodes', node])}>Look at the node</a>`}.</span>
      </div>`,
    )}</div>
    ${overview?.disable_stats && html`<p class="banner">Statistics are switched off on this broker.</p>`}
  </div>`;
}

function Outlet() {
  const { path } = useStore(place);
  const key = JSON.stringify(path);
  const [page, setPage] = useState({ key: null });
  const main = useRef(null);
  const first = useRef(true);
  const [crash, forget] = useErrorBoundary((error) => console.error(error));
  useEffect(() => {
    let here = true;
    forget();
    const route = routeOf(path);
    if (!route || !route.allowed()) setPage({ key, missing: true });
    else {
      route.load().then(
        (module) => here && setPage({ key, Component: module.default, params: route.params }),
        () => here && setPage({ key, broken: true }),
      );
    }
    return () => (here = false);
  }, [key]);
  useEffect(() => {
    if (page.key === null) return;
    // The heading takes the focus, so that a screen reader says where one is; not on the first page, which is read anyway.
    if (!first.current) main.current.querySelector('h1')?.focus({ preventScroll: true });
    if (!first.current) window.scrollTo(0, 0);
    first.current = false;
  }, [page.key]);
  let content = html`<p class="loading" role="status">Loading…</p>`;
  if (crash) content = html`<${Trouble} error=${{ message: crash.message }} />`;
  else if (page.key === key && page.missing)
    content = html`<${Page} title="Not here"><p>There is no such page, or your user may not see it. <a href="#/">Go to the overview</a>.</p><//>`;
  else if (page.key === key && page.broken)
    content = html`<${Page} title="Not loaded"><p>The page could not be fetched from the broker. <a href="#/">Go to the overview</a>.</p><//>`;
  else if (page.key === key && page.Component) content = html`<${page.Component} key=${page.key} ...${page.params} />`;
  return html`<main id="main" ref=${main} tabindex="-1">${content}</main>`;
}

export function Shell() {
  const [open, setOpen] = useState(false);
  const menuButton = useRef(null);
  function closeMenu(giveFocusBack) {
    setOpen(false);
    if (giveFocusBack === true) menuButton.current.focus();
  }
  const overview = usePoll('overview?columns=cluster_name,node,product_name,product_version,rabbitmq_version,disable_stats').data;
  useShortcuts();
  function skip(event) {
    event.preventDefault();
    document.getElementById('main').focus();
  }
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to the page</a>
    <div class="shell">
      <${Sidebar} open=${open} close=${closeMenu} overview=${overview} />
      <header class="topbar">
        <button ref=${menuButton} type="button" class="plain menu-button" aria-expanded=${open} aria-controls="menu" onClick=${() => setOpen(!open)}><span aria-hidden="true">☰</span><span class="unseen">Menu</span></button>
        <${SearchBox} />
        <${VhostPicker} />
        <${RefreshPicker} />
        <${UserMenu} />
      </header>
      <div class="content">
        <${Banners} overview=${overview} />
        <${Outlet} />
      </div>
      ${open && html`<div class="scrim" onClick=${closeMenu}></div>`}
    </div>`;
}
