'use strict';
const callbacks = require('amqplib/callback_api');

module.exports = ({ url, queue }) =>
  new Promise((resolve, reject) => {
    const orFail = (then) => (error, value) => (error ? reject(error) : then(value));
    const q = queue();
    callbacks.connect(
      url,
      orFail((connection) => {
        connection.createConfirmChannel(
          orFail((channel) => {
            channel.assertQueue(
              q,
              {},
              orFail(() => {
                channel.consume(q, (message) => {
                  channel.ack(message);
                  connection.close(orFail(() => resolve(message.content.toString())));
                });
                channel.sendToQueue(q, Buffer.from('by callback'), {}, orFail(() => {}));
              }),
            );
          }),
        );
      }),
    );
  });
