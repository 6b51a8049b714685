// What arguments and policy keys mean, for the forms. docs/queues.md has the whole story.

const SHARED = [
  { key: 'message-ttl', kind: 'number', group: 'Limits and expiry', text: 'Ms a message may wait before it leaves the queue.' },
  {
    key: 'expires',
    kind: 'number',
    group: 'Limits and expiry',
    text: 'Ms without consumer, get or declare after which the queue is deleted.',
  },
  { key: 'max-length', kind: 'number', group: 'Limits and expiry', text: 'Ready messages that the queue takes at most.' },
  { key: 'max-length-bytes', kind: 'number', group: 'Limits and expiry', text: 'Bytes of ready bodies that the queue takes at most.' },
  {
    key: 'overflow',
    kind: 'string',
    group: 'Limits and expiry',
    choices: ['drop-head', 'reject-publish', 'reject-publish-dlx'],
    text: 'At the limit: drop-head removes the oldest, reject-publish refuses the new one, reject-publish-dlx refuses and dead-letters it.',
  },
  {
    key: 'dead-letter-exchange',
    kind: 'string',
    group: 'Dead letters',
    text: 'The exchange for messages that expire, are rejected, exceed a length limit or fail too often. Empty: the default exchange.',
  },
  { key: 'dead-letter-routing-key', kind: 'string', group: 'Dead letters', text: 'The routing key of dead letters, instead of their own.' },
  {
    key: 'delivery-limit',
    kind: 'number',
    group: 'Failed deliveries',
    text: 'A message that failed more often is dead-lettered. -1: no limit.',
  },
  {
    key: 'delivery-limit-action',
    kind: 'string',
    group: 'Failed deliveries',
    choices: ['dead-letter', 'drop', 'park'],
    text: 'What happens at the delivery limit: dead-letter, drop, or park (kept aside until released).',
  },
  {
    key: 'delayed-retry-type',
    kind: 'string',
    group: 'Failed deliveries',
    choices: ['all', 'failed', 'returned', 'disabled'],
    text: 'Which returned messages wait before the next try.',
  },
  { key: 'delayed-retry-min', kind: 'number', group: 'Failed deliveries', text: 'Ms of that wait, times the number of tries.' },
  { key: 'delayed-retry-max', kind: 'number', group: 'Failed deliveries', text: 'The longest such wait, ms.' },
  {
    key: 'retry-backoff',
    kind: 'json',
    group: 'Failed deliveries',
    preset: '["1s", "10s", "1m"]',
    text: 'The waits before each try; the last repeats. Or the text "exponential:1s:5m".',
  },
  { key: 'visibility-timeout', kind: 'number', group: 'Failed deliveries', text: 'Ms after which an unanswered delivery is requeued.' },
  {
    key: 'consumer-timeout',
    kind: 'number',
    group: 'Failed deliveries',
    text: 'Ms after which an unanswered delivery is requeued and its consumer cancelled.',
  },
  { key: 'consumer-prefetch-max', kind: 'number', group: 'Consumers', text: 'The highest prefetch a consumer gets.' },
  { key: 'max-unacked', kind: 'number', group: 'Consumers', text: 'The most unanswered deliveries of all consumers together.' },
  { key: 'read-committed', kind: 'boolean', group: 'Consumers', text: 'Deliver a message only once it is committed.' },
];

const QUEUE_ONLY = [
  {
    key: 'x-single-active-consumer',
    kind: 'boolean',
    group: 'Consumers',
    text: 'One consumer gets all messages; the next takes over when it ends.',
  },
  {
    key: 'x-key-shared',
    kind: 'boolean',
    group: 'Consumers',
    text: 'Messages of one key go to one consumer at a time and in order; different keys spread over all.',
  },
  { key: 'x-key-header', kind: 'string', group: 'Consumers', text: 'The header that has that key; without it, the routing key.' },
  { key: 'x-message-deduplication', kind: 'boolean', group: 'Duplicates', text: 'A message whose key was accepted before is dropped.' },
  { key: 'x-deduplication-header', kind: 'string', group: 'Duplicates', text: 'The header that has the key.' },
  { key: 'x-cache-size', kind: 'number', group: 'Duplicates', text: 'Keys to remember (128 unless given).' },
  { key: 'x-cache-ttl', kind: 'number', group: 'Duplicates', text: 'Ms that a key is remembered.' },
];

const CLASSIC_ONLY = [
  { key: 'x-max-priority', kind: 'number', group: 'Consumers', text: '1 to 255: messages of higher priority leave first.' },
  {
    key: 'x-storage',
    kind: 'string',
    group: 'Limits and expiry',
    choices: ['memory'],
    text: 'memory: nothing is written to disk. Needs a length limit.',
  },
];

const QUORUM_ONLY = [
  {
    key: 'x-dead-letter-strategy',
    kind: 'string',
    group: 'Dead letters',
    choices: ['at-most-once', 'at-least-once'],
    text: 'at-least-once: a letter that its target refuses is kept and tried again. Needs overflow reject-publish.',
  },
];

const STREAM_ONLY = [
  { key: 'x-max-age', kind: 'string', group: 'Retention', text: 'How long messages are kept: 7D, 12h (Y, M, D, h, m, s).' },
  { key: 'x-max-length-bytes', kind: 'number', group: 'Retention', text: 'Bytes of bodies to keep; the oldest messages are removed.' },
  {
    key: 'x-cleanup',
    kind: 'string',
    group: 'Retention',
    choices: ['delete', 'compact'],
    text: 'compact keeps the last message of each key; delete, the default, removes by the limits only.',
  },
  { key: 'x-key-header', kind: 'string', group: 'Retention', text: 'With compact: the header that has the key; without it, the routing key.' },
  { key: 'x-stream-max-segment-size-bytes', kind: 'number', group: 'Retention', text: 'The size of the stream\'s files.' },
];

export const UNKNOWN_ARGUMENT = 'The broker keeps this key. It has no effect.';

const asArgument = (hint) => ({ ...hint, key: `x-${hint.key}` });

export const QUEUE_ARGUMENTS = {
  classic: [...SHARED.map(asArgument), ...CLASSIC_ONLY, ...QUEUE_ONLY],
  quorum: [...SHARED.map(asArgument), ...QUORUM_ONLY, ...QUEUE_ONLY],
  stream: [...STREAM_ONLY, ...QUEUE_ONLY.filter((hint) => hint.group === 'Duplicates')],
};

export const EXCHANGE_ARGUMENTS = [
  { key: 'alternate-exchange', kind: 'string', group: 'Routing', text: 'Gets what this exchange cannot route.' },
  { key: 'x-delayed-type', kind: 'string', group: 'Routing', text: 'Of x-delayed-message: how it routes once the delay is over.' },
  { key: 'hash-header', kind: 'string', group: 'Routing', text: 'Of x-consistent-hash: the header that is hashed.' },
  {
    key: 'hash-property',
    kind: 'string',
    group: 'Routing',
    choices: ['message_id', 'correlation_id', 'timestamp'],
    text: 'Of x-consistent-hash: the property that is hashed.',
  },
  { key: 'x-recent-history-length', kind: 'number', group: 'Routing', text: 'Of x-recent-history: how many messages a new binding gets.' },
  { key: 'x-super-stream', kind: 'number', group: 'Routing', text: 'Of x-super-stream and direct: the number of streams to declare and bind as its partitions.' },
  ...QUEUE_ONLY.filter((hint) => hint.group === 'Duplicates'),
];

export const POLICY_KEYS = [
  ...SHARED,
  {
    key: 'dead-letter-strategy',
    kind: 'string',
    group: 'Dead letters',
    choices: ['at-most-once', 'at-least-once'],
    text: 'Of quorum queues: at-least-once keeps a letter until its target takes it.',
  },
  { key: 'alternate-exchange', kind: 'string', group: 'Exchanges', text: 'Gets what the exchange cannot route.' },
  { key: 'queue-version', kind: 'number', group: 'Other brokers', text: 'Kept for RabbitMQ.' },
  {
    key: 'federation-upstream-set',
    kind: 'string',
    group: 'Other brokers',
    text: 'The set of upstreams to federate from; "all" is every upstream.',
  },
  { key: 'federation-upstream', kind: 'string', group: 'Other brokers', text: 'The upstream to federate from.' },
  { key: 'max-age', kind: 'string', group: 'Streams', text: 'How long messages of a stream are kept: 7D, 12h.' },
  {
    key: 'cleanup',
    kind: 'string',
    group: 'Streams',
    choices: ['delete', 'compact'],
    text: 'compact keeps the last message of each key of a stream.',
  },
];

const OPERATOR = [
  'delivery-limit',
  'expires',
  'max-length',
  'max-length-bytes',
  'message-ttl',
  'overflow',
  'queue-version',
  'consumer-prefetch-max',
  'max-unacked',
];
export const OPERATOR_POLICY_KEYS = POLICY_KEYS.filter((hint) => OPERATOR.includes(hint.key));
