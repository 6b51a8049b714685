'use strict';
module.exports = async ({ amqplib, url, queue, exchange }) => {
  const connection = await amqplib.connect(url);
  const q = queue();
  const x = exchange();
  const setUp = await connection.createChannel();
  await setUp.assertQueue(q, { durable: true });
  await setUp.assertExchange(x, 'direct');
  const actions = {
    'check a missing queue': (channel) => channel.checkQueue(`${q}-missing`),
    'check a missing exchange': (channel) => channel.checkExchange(`${x}-missing`),
    'a different queue': (channel) => channel.assertQueue(q, { durable: false }),
    'a different exchange': (channel) => channel.assertExchange(x, 'fanout'),
    'a reserved name': (channel) => channel.assertQueue('amq.mine'),
    'bind to a missing exchange': (channel) => channel.bindQueue(q, `${x}-missing`, 'k'),
    'consume a missing queue': (channel) => channel.consume(`${q}-missing`, () => {}),
    'publish to a missing exchange': (channel) => channel.publish(`${x}-missing`, 'k', Buffer.from('x')),
    'acknowledge nothing': (channel) => channel.ack({ fields: { deliveryTag: 12 } }),
    'delete a system exchange': (channel) => channel.deleteExchange('amq.topic'),
  };
  const result = {};
  for (const [what, action] of Object.entries(actions)) {
    const channel = await connection.createChannel();
    const failed = new Promise((resolve) => channel.once('error', resolve));
    const closed = new Promise((resolve) => channel.once('close', resolve));
    Promise.resolve(action(channel)).catch(() => {}); // the same error reaches the listener
    const error = await failed;
    await closed;
    result[what] = [error.code, error.classId, error.methodId, error.message];
  }
  await setUp.checkQueue(q);
  await connection.close();
  return { result, queue: q, exchange: x };
};
