'use strict';
module.exports = async ({ amqplib, url }) => {
  const messages = {};
  const attempts = { password: { password: 'wrong' }, vhost: { pathname: '/no-such-vhost' } };
  for (const [what, change] of Object.entries(attempts)) {
    const target = Object.assign(new URL(url), change);
    messages[what] = await amqplib.connect(target.toString()).then(
      () => 'connected',
      (error) => error.message,
    );
  }
  return messages;
};
