'use strict';
module.exports = async ({ amqplib, url, queue, exchange }) => {
  const connection = await amqplib.connect(url);
  const channel = await connection.createChannel();
  const result = {};
  for (const [type, key, args] of [
    ['direct', 'a.b', {}],
    ['topic', 'a.*', {}],
    ['fanout', '', {}],
    ['headers', '', { 'x-match': 'any', h: 1, i: 2 }],
  ]) {
    const x = exchange();
    const q = queue();
    await channel.assertExchange(x, type, { durable: false, autoDelete: true });
    await channel.checkExchange(x);
    await channel.assertQueue(q);
    await channel.bindQueue(q, x, key, args);
    channel.publish(x, 'a.b', Buffer.from(type), { headers: { h: 1 } });
    const message = await channel.get(q, { noAck: true });
    result[type] = [message.content.toString(), message.fields.routingKey, message.fields.exchange === x];
    await channel.unbindQueue(q, x, key, args);
  }
  const source = exchange();
  const destination = exchange();
  const spare = exchange();
  const q = queue();
  await channel.assertQueue(q);
  await channel.assertExchange(spare, 'fanout');
  await channel.assertExchange(source, 'direct', { alternateExchange: spare });
  await channel.assertExchange(destination, 'fanout', { internal: true });
  await channel.bindExchange(destination, source, 'k');
  await channel.bindQueue(q, destination, '');
  await channel.bindQueue(q, spare, '');
  channel.publish(source, 'k', Buffer.from('through the binding'));
  channel.publish(source, 'other', Buffer.from('through the alternate'));
  await channel.unbindExchange(destination, source, 'k');
  channel.publish(source, 'k', Buffer.from('through the alternate now'));
  result.walked = [];
  for (let i = 0; i < 3; i += 1) result.walked.push((await channel.get(q, { noAck: true })).content.toString());
  await channel.deleteExchange(spare);
  await connection.close();
  return result;
};
