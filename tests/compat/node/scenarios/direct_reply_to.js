'use strict';
const REPLY_TO = 'amq.rabbitmq.reply-to';
module.exports = async ({ amqplib, url, queue, until }) => {
  const connection = await amqplib.connect(url);
  const server = await connection.createChannel();
  const client = await connection.createChannel();
  const q = queue();
  await server.assertQueue(q);
  await server.consume(q, (message) => {
    const { replyTo, correlationId } = message.properties;
    server.sendToQueue(replyTo, Buffer.from(message.content.toString().toUpperCase()), { correlationId });
    server.ack(message);
  });
  const answers = {};
  await client.consume(
    REPLY_TO,
    (message) => {
      answers[message.properties.correlationId] = message.content.toString();
    },
    { noAck: true },
  );
  for (const word of ['one', 'two', 'three']) {
    client.sendToQueue(q, Buffer.from(word), { replyTo: REPLY_TO, correlationId: word });
  }
  await until(() => Object.keys(answers).length === 3);
  await connection.close();
  return answers;
};
