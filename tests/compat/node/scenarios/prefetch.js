'use strict';
module.exports = async ({ amqplib, url, queue, until }) => {
  const connection = await amqplib.connect(url);
  const channel = await connection.createChannel();
  const result = {};
  for (const global of [false, true]) {
    const q = queue();
    await channel.assertQueue(q);
    for (let i = 0; i < 10; i += 1) channel.sendToQueue(q, Buffer.from(`${i}`));
    await channel.prefetch(global ? 4 : 3, global);
    const held = [];
    const { consumerTag } = await channel.consume(q, (message) => held.push(message));
    await until(() => held.length >= 3);
    await channel.checkQueue(q);
    await channel.checkQueue(q);
    const before = held.length;
    channel.ack(held[1], true);
    await until(() => held.length >= before + 2);
    await channel.checkQueue(q);
    await channel.checkQueue(q);
    result[global ? 'global' : 'consumer'] = [before, held.length];
    channel.ackAll();
    await channel.cancel(consumerTag);
    channel.ackAll();
  }
  await connection.close();
  return result;
};
