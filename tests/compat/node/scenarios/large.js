'use strict';
const { createHash } = require('node:crypto');
module.exports = async ({ amqplib, url, queue, until }) => {
  const hash = (buffer) => createHash('sha256').update(buffer).digest('hex');
  const q = queue();
  const result = [];
  for (const frameMax of ['4096', '131072']) {
    const target = new URL(url);
    target.searchParams.set('frameMax', frameMax);
    const connection = await amqplib.connect(target.toString());
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(q);
    const bodies = [0, 1, 4088, 4089, 131064, 1000000].map((size) => Buffer.alloc(size, 'pattern'));
    const received = [];
    const { consumerTag } = await channel.consume(q, (message) => received.push(hash(message.content)), {
      noAck: true,
    });
    for (const body of bodies) channel.sendToQueue(q, body);
    await channel.waitForConfirms();
    await until(() => received.length === bodies.length);
    await channel.cancel(consumerTag);
    result.push(JSON.stringify(received) === JSON.stringify(bodies.map(hash)));
    await connection.close();
  }
  return result;
};
