'use strict';
module.exports = async ({ amqplib, url, queue }) => {
  const connection = await amqplib.connect(url);
  const channel = await connection.createChannel();
  const result = {};
  const name = queue();
  result.declared = await channel.assertQueue(name, { durable: true, arguments: { 'x-colour': 'green' } });
  result.named = (await channel.assertQueue('', { exclusive: true })).queue.startsWith('amq.gen-');
  for (let i = 0; i < 5; i += 1) channel.sendToQueue(name, Buffer.from(`${i}`));
  result.got = (await channel.get(name, { noAck: true })).content.toString();
  result.checked = (await channel.checkQueue(name)).messageCount;
  result.purged = await channel.purgeQueue(name);
  result.empty = await channel.get(name);
  channel.sendToQueue(name, Buffer.from('left over'));
  result.deleted = await channel.deleteQueue(name);
  result.deletedAgain = await channel.deleteQueue(name);
  await connection.close();
  return { ...result, declared: result.declared.queue === name };
};
