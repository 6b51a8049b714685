// What a node has to be helped with, and how: docs/runbook.md has it in full.

import { formatTime } from './format.js';

/** What `alertsOf` needs of a node, as the API's `columns`. */
export const ALERT_COLUMNS = 'name,mem_alarm,disk_free_alarm,inbound_alarm,replicas_alarm,links_held,failing_tasks,running,role,state,gone_since_ms';

/** What to do about a node of a cluster that does not follow, by its `state`; undefined for one that works. */
export function adviceOn(node) {
  if (node.state === 'gone') return 'Start it again; the last lines of its log say why it ended. Nothing is lost while enough others are in sync.';
  if (node.state === 'registered')
    return 'Its process runs, and is not connected to the leader: its log has “not following”, with the reason.';
  return undefined;
}

/** [{what, advice, page?}]: what is wrong with a node, worst first, what to do about it, and where to look. */
export function alertsOf(node) {
  const found = [];
  if (node.running === false) {
    const since = node.gone_since_ms ? ` since ${formatTime(node.gone_since_ms)}` : '';
    const what = node.state === 'registered' ? 'does not follow its leader.' : `is gone${since}.`;
    found.push({ what, advice: adviceOn(node) ?? 'Start it; its log says why it ended.', page: ['cluster'] });
  }
  if (node.replicas_alarm)
    found.push({
      what: 'has too few nodes in sync. Publishers are blocked, and nothing is confirmed until as many as min_in_sync are back.',
      advice: 'Bring back the nodes that are gone.',
      page: ['cluster'],
    });
  if (node.mem_alarm)
    found.push({
      what: 'is short of memory. Publishers are blocked.',
      advice: 'Consume messages, close connections that hold much, or raise limits.memory_high_watermark. It ends below 95 % of the limit.',
    });
  if (node.disk_free_alarm)
    found.push({
      what: 'is short of disk space. Publishers are blocked.',
      advice: 'Make room on the disk of the data directory, or consume or purge messages; compaction gives their space back after a while.',
    });
  if (node.inbound_alarm)
    found.push({
      what: 'holds as many messages received in part as it may. Connections that send large ones take turns.',
      advice: 'Look for clients that begin large messages and do not end them; the log names the largest.',
    });
  if (node.links_held)
    found.push({
      what: `holds its shovels, federation links and tables: ${node.links_held}.`,
      advice: 'Release them on the overview when the broker that they are from is gone.',
      page: [],
      where: 'overview',
    });
  for (const task of node.failing_tasks ?? [])
    found.push({
      what: `starts “${task.name}” again and again: ${task.reason}.`,
      advice: 'The line “a task has failed” in the log has the details; report it.',
    });
  return found;
}
