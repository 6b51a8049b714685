'use strict';
// CloudAMQP's client for browsers: node amqp.js, with BROKER_URL in the environment.
Object.assign(globalThis, { WebSocket: require('ws') });
const { AMQPWebSocketClient } = require('@cloudamqp/amqp-client');

async function main() {
  const client = new AMQPWebSocketClient(process.env.BROKER_URL, '/', 'guest', 'guest');
  const connection = await client.connect();
  const channel = await connection.channel();
  await channel.confirmSelect();
  const { name: queue } = await channel.queueDeclare('', { exclusive: true });
  const received = [];
  const all = new Promise((resolve) => {
    channel.basicConsume(queue, { noAck: false }, async (message) => {
      received.push(message.bodySize);
      await message.ack();
      if (received.length === 102) resolve();
    });
  });
  await channel.basicPublish('', queue, 'hello', { deliveryMode: 2 });
  await channel.basicPublish('', queue, new Uint8Array(300_000));
  for (let count = 0; count < 100; count += 1) await channel.basicPublish('', queue, 'again');
  await all;
  await connection.close();
  process.stdout.write(JSON.stringify({ first: received.slice(0, 2), count: received.length }));
}

main().catch((error) => {
  process.stderr.write(`${error?.stack ?? error?.reason ?? error}\n`);
  process.exit(1);
});
