'use strict';
module.exports = async ({ amqplib, url, queue }) => {
  const connection = await amqplib.connect(url);
  const channel = await connection.createChannel();
  const q = queue();
  await channel.assertQueue(q);
  const take = async () => {
    const message = await channel.get(q);
    return message || null;
  };
  const show = (message) => message && [message.content.toString(), message.fields.redelivered];
  const log = [];
  for (const body of ['a', 'b', 'c']) channel.sendToQueue(q, Buffer.from(body));
  const [a, b, c] = [await take(), await take(), await take()];
  channel.reject(b, true);
  channel.nack(a, false, true);
  channel.reject(c, false);
  const again = [await take(), await take(), await take()];
  log.push(again.map(show));
  channel.nackAll(true);
  log.push([show(await take()), show(await take())]);
  await channel.recover();
  log.push([show(await take()), show(await take())]);
  channel.nackAll(false);
  log.push(show(await take()));
  await connection.close();
  return log;
};
