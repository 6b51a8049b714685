// Which page belongs to which path. A page is a module with a default export; it is loaded when it is first visited.

import { mayAdminister, mayMonitor, maySetPolicies } from './session.js';

const anybody = () => true;

// [segments before the parameters, names of the parameters, load, who may see it]
const ROUTES = [
  [[], [], () => import('./pages/overview.js'), anybody],
  [['connections'], [], () => import('./pages/connections.js'), anybody],
  [['connections'], ['name'], () => import('./pages/connection.js'), anybody],
  [['applications'], ['name'], () => import('./pages/application.js'), anybody],
  [['channels'], [], () => import('./pages/channels.js'), anybody],
  [['channels'], ['name'], () => import('./pages/channel.js'), anybody],
  [['consumers'], [], () => import('./pages/consumers.js'), anybody],
  [['mqtt-sessions'], [], () => import('./pages/mqtt_sessions.js'), anybody],
  [['mqtt-sessions'], ['vhost', 'name'], () => import('./pages/mqtt_session.js'), anybody],
  [['retained'], [], () => import('./pages/retained.js'), anybody],
  [['exchanges'], [], () => import('./pages/exchanges.js'), anybody],
  [['exchanges'], ['vhost', 'name'], () => import('./pages/exchange.js'), anybody],
  [['queues'], [], () => import('./pages/queues.js'), anybody],
  [['queues'], ['vhost', 'name'], () => import('./pages/queue.js'), anybody],
  [['super-streams'], [], () => import('./pages/super_streams.js'), anybody],
  [['bulk'], [], () => import('./pages/bulk.js'), anybody],
  [['routing'], [], () => import('./pages/routing.js'), anybody],
  [['search'], [], () => import('./pages/search.js'), anybody],
  [['users'], [], () => import('./pages/users.js'), mayAdminister],
  [['users'], ['name'], () => import('./pages/user.js'), mayAdminister],
  [['vhosts'], [], () => import('./pages/vhosts.js'), mayAdminister],
  [['vhosts'], ['name'], () => import('./pages/vhost.js'), mayAdminister],
  [['policies'], [], () => import('./pages/policies.js'), maySetPolicies],
  [['limits'], [], () => import('./pages/limits.js'), mayAdminister],
  [['parameters'], [], () => import('./pages/parameters.js'), maySetPolicies],
  [['shovels'], [], () => import('./pages/shovels.js'), maySetPolicies],
  [['federation'], [], () => import('./pages/federation.js'), maySetPolicies],
  [['lake'], [], () => import('./pages/lake.js'), maySetPolicies],
  [['definitions'], [], () => import('./pages/definitions.js'), mayAdminister],
  [['logs'], [], () => import('./pages/logs.js'), mayAdminister],
  [['cluster'], [], () => import('./pages/cluster.js'), mayMonitor],
  [['nodes'], ['name'], () => import('./pages/node.js'), mayMonitor],
  [['store'], [], () => import('./pages/store.js'), mayMonitor],
];

/** The sections of the menu: [heading, [[segments, label, who may see it, key of the shortcut "g …"], …]]. */
export const MENU = [
  ['', [[[], 'Overview', anybody, 'o']]],
  [
    'Clients',
    [
      [['connections'], 'Connections', anybody, 'c'],
      [['channels'], 'Channels', anybody, 'h'],
      [['consumers'], 'Consumers', anybody, 'n'],
      [['mqtt-sessions'], 'MQTT sessions', anybody],
    ],
  ],
  [
    'Messages',
    [
      [['queues'], 'Queues and streams', anybody, 'q'],
      [['exchanges'], 'Exchanges', anybody, 'e'],
      [['super-streams'], 'Super streams', anybody],
      [['retained'], 'Retained messages', anybody],
      [['bulk'], 'Bulk data', anybody],
      [['routing'], 'Routing', anybody, 'r'],
    ],
  ],
  [
    'Admin',
    [
      [['users'], 'Users', mayAdminister, 'u'],
      [['vhosts'], 'Virtual hosts', mayAdminister, 'v'],
      [['policies'], 'Policies', maySetPolicies, 'p'],
      [['limits'], 'Limits', mayAdminister],
      [['parameters'], 'Parameters', maySetPolicies],
      [['shovels'], 'Shovels', maySetPolicies],
      [['federation'], 'Federation', maySetPolicies],
      [['lake'], 'Lake', maySetPolicies],
      [['definitions'], 'Definitions', mayAdminister, 'd'],
      [['logs'], 'Logs', mayAdminister, 'l'],
    ],
  ],
  [
    'Node',
    [
      [['cluster'], 'Cluster', mayMonitor],
      [['store'], 'Store', mayMonitor, 's'],
    ],
  ],
];

/** {load, allowed, params} of a path; undefined where there is no page. */
export function routeOf(path) {
  for (const [before, names, load, allowed] of ROUTES) {
    if (path.length !== before.length + names.length || before.some((segment, at) => path[at] !== segment)) continue;
    const params = Object.fromEntries(names.map((name, at) => [name, path[before.length + at]]));
    return { load, allowed, params };
  }
  return undefined;
}
