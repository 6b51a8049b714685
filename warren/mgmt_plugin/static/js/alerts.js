// What a node has to be helped with, and how: docs/runbook.md has it in full.

/** What `alertsOf` needs of a node, as the API's `columns`. */
export const ALERT_COLUMNS = 'name,mem_alarm,disk_free_alarm,inbound_alarm,failing_tasks,running';

/** [{what, advice}]: what is wrong with a node, worst first, and what to do about it. */
export function alertsOf(node) {
  const found = [];
  if (node.running === false) found.push({ what: 'is not running.', advice: 'Start it; its log says why it ended.' });
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
  for (const task of node.failing_tasks ?? [])
    found.push({
      what: `starts “${task.name}” again and again: ${task.reason}.`,
      advice: 'The line “a task has failed” in the log has the details; report it.',
    });
  return found;
}
