'use strict';
module.exports = async ({ amqplib, url, queue, until }) => {
  const connection = await amqplib.connect(url);
  const channel = await connection.createChannel();
  const q = queue();
  await channel.assertQueue(q);
  await channel.prefetch(2);
  const seen = { low: [], high: [] };
  await channel.consume(q, (message) => seen.low.push(message.content.toString()), { priority: -1 });
  await channel.consume(q, (message) => seen.high.push(message.content.toString()), { priority: 5 });
  for (const body of ['1', '2', '3']) channel.sendToQueue(q, Buffer.from(body));
  await until(() => seen.low.length + seen.high.length === 3);
  await connection.close();
  return seen;
};
