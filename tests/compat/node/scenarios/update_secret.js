'use strict';
module.exports = async ({ amqplib, url }) => {
  const connection = await amqplib.connect(url);
  const answered = new Promise((resolve) => connection.once('update-secret-ok', resolve));
  connection.updateSecret(Buffer.from(decodeURIComponent(new URL(url).password)), 'renewed');
  await answered;
  await (await connection.createChannel()).close();
  await connection.close();
  return true;
};
