'use strict';
module.exports = async ({ amqplib, url, queue }) => {
  const connection = await amqplib.connect(url);
  const failed = new Promise((resolve) => connection.once('error', resolve));
  const closed = new Promise((resolve) => connection.once('close', resolve));
  const channel = await connection.createChannel();
  channel.on('error', () => {}); // told through the connection
  const q = queue();
  await channel.assertQueue(q);
  await channel.consume(q, () => {}, { consumerTag: 'twice' });
  channel.consume(q, () => {}, { consumerTag: 'twice' }).catch(() => {}); // the connection's error says it
  const error = await failed;
  await closed;
  return [error.code, error.message];
};
