'use strict';
module.exports = async ({ amqplib, url, queue, exchange }) => {
  const connection = await amqplib.connect(url);
  const channel = await connection.createConfirmChannel();
  const q = queue();
  await channel.assertQueue(q, { durable: true });
  let confirmed = 0;
  for (let i = 0; i < 500; i += 1) {
    channel.sendToQueue(q, Buffer.from('x'), { persistent: true }, (error) => {
      if (error) throw error;
      confirmed += 1;
    });
  }
  await channel.waitForConfirms();
  const { messageCount } = await channel.purgeQueue(q);
  const log = [];
  channel.on('return', (message) => log.push(['return', message.fields.replyCode, message.fields.replyText]));
  const x = exchange();
  await channel.assertExchange(x, 'fanout');
  for (let i = 0; i < 3; i += 1) {
    await new Promise((resolve, reject) => {
      channel.publish(x, 'nobody', Buffer.from('x'), { mandatory: true }, (error) => {
        log.push(['confirm']);
        if (error) reject(error);
        else resolve();
      });
    });
  }
  await connection.close();
  return { confirmed, messageCount, log };
};
