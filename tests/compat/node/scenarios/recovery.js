'use strict';
module.exports = async ({ amqplib, url, queue, until }) => {
  const q = queue();
  const bodies = [];
  let connects = 0;
  const connection = await amqplib.connect(url, {
    recovery: {
      initialDelay: 20,
      maxDelay: 50,
      setup: async (model) => {
        connects += 1;
        const channel = await model.createChannel();
        channel.on('error', () => {}); // the connection's recovery deals with it
        await channel.assertQueue(q);
        await channel.consume(
          q,
          (message) => {
            bodies.push(message.content.toString());
            channel.ack(message);
            if (message.content.toString() === 'break') {
              channel.consume(q, () => {}, { consumerTag: 'twice' }).catch(() => {}); // one of the two breaks it
              channel.consume(q, () => {}, { consumerTag: 'twice' }).catch(() => {});
            }
          },
          { consumerTag: 'steady' },
        );
      },
    },
  });
  connection.on('error', () => {}); // expected, and recovered from
  const other = await amqplib.connect(url);
  const sender = await other.createConfirmChannel();
  sender.sendToQueue(q, Buffer.from('before'));
  await until(() => bodies.length === 1);
  sender.sendToQueue(q, Buffer.from('break'));
  await until(() => connects === 2);
  sender.sendToQueue(q, Buffer.from('after'));
  await until(() => bodies.includes('after'));
  await connection.close();
  await other.close();
  return { bodies, connects };
};
