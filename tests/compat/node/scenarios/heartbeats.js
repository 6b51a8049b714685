'use strict';
// amqplib gives up after two intervals without a byte, so five heartbeats prove that the broker sends them
module.exports = async ({ amqplib, url, until }) => {
  const target = new URL(url);
  target.searchParams.set('heartbeat', '1');
  const connection = await amqplib.connect(target.toString());
  const errors = [];
  connection.on('error', (error) => errors.push(error.message));
  const channel = await connection.createChannel();
  const { stream } = connection.connection;
  let heard = 0;
  let bytes = stream.bytesRead;
  await until(() => {
    if (stream.bytesRead > bytes) heard += 1;
    bytes = stream.bytesRead;
    return heard >= 5 || errors.length > 0;
  });
  const { queue } = await channel.assertQueue('', { exclusive: true });
  await connection.close();
  return { errors, works: queue.startsWith('amq.gen-') };
};
