'use strict';
module.exports = async ({ amqplib, url }) => {
  const connection = await amqplib.connect(url, { clientProperties: { connection_name: 'named by amqplib' } });
  const { product, capabilities } = connection.connection.serverProperties;
  const channel = await connection.createChannel();
  await channel.close();
  await connection.close();
  return { product, capabilities };
};
