'use strict';
module.exports = async ({ amqplib, url, queue, until }) => {
  const connection = await amqplib.connect(url);
  const channel = await connection.createChannel();
  const q = queue();
  await channel.assertQueue(q);
  const seen = [];
  await channel.consume(q, (message) => seen.push(message && message.content.toString()), { noAck: true });
  channel.sendToQueue(q, Buffer.from('last'));
  await until(() => seen.length === 1);
  await channel.deleteQueue(q);
  await until(() => seen.length === 2);
  await connection.close();
  return seen;
};
