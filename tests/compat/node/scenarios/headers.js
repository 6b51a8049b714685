'use strict';
// every field type amqplib can write, those pika cannot (floats, doubles, small integers) included
const sent = {
  text: 'with ✓',
  truth: true,
  lie: false,
  small: 7,
  negative: -70000,
  large: 2 ** 40,
  fraction: 1.5,
  nothing: null,
  list: [1, 'two', [3.5], { four: null }],
  table: { a: { b: { c: 'deep' } } },
  int8: { '!': 'int8', value: -8 },
  int16: { '!': 'int16', value: -16000 },
  int32: { '!': 'int32', value: -2000000000 },
  int64: { '!': 'int64', value: -(2 ** 50) },
  uint8: { '!': 'uint8', value: 200 },
  uint16: { '!': 'uint16', value: 60000 },
  uint32: { '!': 'uint32', value: 4000000000 },
  float: { '!': 'float', value: 0.25 },
  double: { '!': 'double', value: 0.1 },
  timestamp: { '!': 'timestamp', value: 1700000000 },
  decimal: { '!': 'decimal', value: { digits: 12345, places: 2 } },
};
module.exports = async ({ amqplib, url, queue }) => {
  const connection = await amqplib.connect(url);
  const channel = await connection.createChannel();
  const q = queue();
  await channel.assertQueue(q, { arguments: { 'x-note': sent.table, 'x-size': 2.5 } });
  const properties = {
    contentType: 'application/json',
    contentEncoding: 'utf-8',
    persistent: true,
    priority: 4,
    correlationId: 'correlation',
    replyTo: 'reply',
    expiration: 60000,
    messageId: 'message',
    timestamp: 1700000000,
    type: 'type',
    appId: 'app',
  };
  channel.sendToQueue(q, Buffer.from('x'), { ...properties, headers: { ...sent, octets: Buffer.from([0, 255, 206]) } });
  const message = await channel.get(q, { noAck: true });
  await connection.close();
  const { headers, ...others } = message.properties;
  headers.octets = headers.octets.toString('hex');
  return { sent, headers, properties: others };
};
