'use strict';
module.exports = async ({ amqplib, url, queue, until }) => {
  const connection = await amqplib.connect(url);
  const channel = await connection.createChannel();
  const q = queue();
  await channel.assertQueue(q);
  const bodies = [];
  const tags = [];
  const { consumerTag } = await channel.consume(q, (message) => {
    bodies.push(message.content.toString());
    tags.push(message.fields.deliveryTag);
    channel.ack(message);
  });
  for (let i = 0; i < 200; i += 1) channel.sendToQueue(q, Buffer.from(`${i}`));
  await until(() => bodies.length === 200);
  await channel.cancel(consumerTag);
  channel.sendToQueue(q, Buffer.from('after'));
  const left = await channel.get(q, { noAck: true });
  await connection.close();
  return { bodies, tags, left: left.content.toString() };
};
