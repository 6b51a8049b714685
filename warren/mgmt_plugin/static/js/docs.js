// The reference of the HTTP API, drawn from the OpenAPI document of this broker.

import { get, url } from './api.js';
import { html, render, useEffect, useMemo, useState } from './ui.js';

const METHODS = ['get', 'put', 'post', 'delete', 'head', 'patch'];
const DEEPEST = 6;

/** Follow `$ref` inside the document. */
function resolve(document, value) {
  if (!value?.$ref) return value ?? {};
  return (
    value.$ref
      .replace(/^#\//, '')
      .split('/')
      .reduce((part, key) => part?.[key.replaceAll('~1', '/').replaceAll('~0', '~')], document) ?? {}
  );
}

function typeOf(document, given) {
  const schema = resolve(document, given);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(' | ');
  if (schema.type === 'array') return `array of ${typeOf(document, schema.items)}`;
  const either = schema.oneOf ?? schema.anyOf;
  if (either) return either.map((each) => typeOf(document, each)).join(' | ');
  const name = given?.$ref?.split('/').at(-1);
  return name ?? (Array.isArray(schema.type) ? schema.type.join(' | ') : (schema.type ?? 'any'));
}

function Schema({ document, schema: given, depth = 0 }) {
  let schema = resolve(document, given);
  if (schema.type === 'array') schema = resolve(document, schema.items);
  const fields = {
    ...Object.assign({}, ...(schema.allOf ?? []).map((part) => resolve(document, part).properties ?? {})),
    ...schema.properties,
  };
  const names = Object.keys(fields);
  if (names.length === 0 || depth > DEEPEST) return schema.description ? html`<p class="hint">${schema.description}</p>` : null;
  return html`<ul class="schema">
    ${names.map((name) => {
      const field = resolve(document, fields[name]);
      const inner = field.type === 'array' ? resolve(document, field.items) : field;
      return html`<li key=${name}>
        <code>${name}</code> <span class="hint">${typeOf(document, fields[name])}${schema.required?.includes(name) ? ', required' : ''}</span>
        ${field.description && html` <span>${field.description}</span>`}
        ${inner.properties && html`<${Schema} document=${document} schema=${inner} depth=${depth + 1} />`}
      </li>`;
    })}
  </ul>`;
}

function Body({ document, title, content, description }) {
  const [[kind, media] = []] = Object.entries(content ?? {});
  return html`<section>
    <h3>${title} ${kind && html`<span class="hint">${kind}${media.schema ? `, ${typeOf(document, media.schema)}` : ''}</span>`}</h3>
    ${description && html`<p>${description}</p>`}
    ${media?.schema && html`<${Schema} document=${document} schema=${media.schema} />`}
    ${media?.example !== undefined && html`<pre class="payload">${JSON.stringify(media.example, null, 2)}</pre>`}
  </section>`;
}

function Operation({ document, operation }) {
  const { method, path, id } = operation;
  const parameters = operation.parameters.map((parameter) => resolve(document, parameter));
  const body = resolve(document, operation.requestBody);
  return html`<details class="operation" id=${id}>
    <summary><span class="method ${method}">${method.toUpperCase()}</span><code class="name">${path}</code><span class="hint">${operation.summary}</span></summary>
    <div class="inside">
      ${operation.description && html`<p>${operation.description}</p>`}
      ${
        parameters.length > 0 &&
        html`<section><h3>Parameters</h3>
        <ul class="schema">${parameters.map((each) => html`<li key=${`${each.in} ${each.name}`}><code>${each.name}</code> <span class="hint">in ${each.in}, ${typeOf(document, each.schema)}${each.required ? ', required' : ''}</span> ${each.description}</li>`)}</ul>
      </section>`
      }
      ${operation.requestBody && html`<${Body} document=${document} title="Body" content=${body.content} description=${body.description} />`}
      ${Object.entries(operation.responses ?? {}).map(([status, given]) => {
        const response = resolve(document, given);
        return html`<${Body} key=${status} document=${document} title=${status} content=${response.content} description=${response.description} />`;
      })}
    </div>
  </details>`;
}

function operationsOf(document) {
  return Object.entries(document.paths ?? {}).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]).map((method) => ({
      ...item[method],
      method,
      path,
      id: item[method].operationId ?? `${method}${path}`,
      group: item[method].tags?.[0] ?? 'Other',
      parameters: [...(item.parameters ?? []), ...(item[method].parameters ?? [])],
    })),
  );
}

function Reference() {
  const [document, setDocument] = useState(null);
  const [error, setError] = useState('');
  const [filter, setFilter] = useState('');
  useEffect(() => {
    get('openapi.json').then(setDocument, (failed) => setError(failed.message));
  }, []);
  const operations = useMemo(() => (document ? operationsOf(document) : []), [document]);
  if (error) return html`<h1>HTTP API</h1><p class="trouble" role="alert">The description cannot be fetched: ${error}</p>`;
  if (!document) return html`<p class="loading" role="status">Loading…</p>`;
  const wanted = filter.toLowerCase();
  const shown = operations.filter((each) => `${each.method} ${each.path} ${each.summary ?? ''}`.toLowerCase().includes(wanted));
  const groups = [...new Set(shown.map((each) => each.group))];
  const described = Object.fromEntries((document.tags ?? []).map((tag) => [tag.name, tag.description]));
  return html`
    <nav class="crumbs" aria-label="You are in"><a href="../">Warren</a></nav>
    <h1>${document.info?.title ?? 'HTTP API'} <small>${document.info?.version}</small></h1>
    <p>${document.info?.description}</p>
    <p class="hint">${operations.length} operations. The same for programs: <a href=${url('openapi.json')}>openapi.json</a>.</p>
    <div class="toolbar"><input type="search" class="filter" aria-label="Filter operations" placeholder="Filter operations" value=${filter} onInput=${(event) => setFilter(event.target.value)} /></div>
    ${groups.length === 0 && html`<p class="empty">No operation matches.</p>`}
    ${groups.map(
      (group) => html`<section key=${group} class="messages">
        <h2>${group}</h2>
        ${described[group] && html`<p class="hint">${described[group]}</p>`}
        ${shown.filter((each) => each.group === group).map((each) => html`<${Operation} key=${each.id} document=${document} operation=${each} />`)}
      </section>`,
    )}`;
}

render(html`<${Reference} />`, document.getElementById('app'));
